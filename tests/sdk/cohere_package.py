"""Ranks documents as programs for Cohere do: through the official `cohere` package."""

import os

import cohere

from common import raises, run

SETTINGS = dict(
    api_key=os.environ["OPENAI_API_KEY"],
    base_url=os.environ["OPENAI_BASE_URL"].removesuffix("/v1"),
)
DOCUMENTS = [f"document {n}" for n in range(40)]
ASKED = dict(model="ranker", query="how many?", documents=DOCUMENTS)
client = cohere.ClientV2(**SETTINGS)


def ranks():
    results = client.rerank(**ASKED).results
    assert sorted(r.index for r in results) == list(range(40)), results
    scores = [r.relevance_score for r in results]
    assert scores == sorted(scores, reverse=True) and all(0 <= s <= 1 for s in scores), scores
    best = client.rerank(**ASKED, top_n=3).results
    assert [r.index for r in best] == [r.index for r in results[:3]], best


def ranks_by_the_first_version():
    first = cohere.Client(**SETTINGS)
    [best] = first.rerank(**ASKED, top_n=1, return_documents=True).results
    assert best.document.text == DOCUMENTS[best.index], best


def errors_have_their_kind():
    raises(cohere.errors.NotFoundError, lambda: client.rerank(**ASKED | dict(model="other")))
    raises(cohere.errors.BadRequestError, lambda: client.rerank(**ASKED | dict(documents=[])))
    stranger = cohere.ClientV2(**SETTINGS | dict(api_key="wrong"))
    raises(cohere.errors.UnauthorizedError, lambda: stranger.rerank(**ASKED))


run(ranks, ranks_by_the_first_version, errors_have_their_kind)
