"""Uses the gateway from a terminal: through `llm`, which has models of other servers in a file."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from common import ANSWER, MODEL, TEXT, TEXT_FOR_JSON, run

FOLDER = tempfile.TemporaryDirectory()
MODELS = pathlib.Path(FOLDER.name) / "extra-openai-models.yaml"
SERVED = {"model_name": MODEL, "api_base": os.environ["OPENAI_BASE_URL"], "supports_schema": True}
# YAML is a superset of JSON.
MODELS.write_text(json.dumps([SERVED | {"model_id": name, "api_key_name": name} for name in ("ours", "wrong")]))
KEYS = {"ours": os.environ["OPENAI_API_KEY"], "wrong": "sk-wrong"}
(pathlib.Path(FOLDER.name) / "keys.json").write_text(json.dumps(KEYS))


def asked(text, *options, model="ours"):
    command = [sys.executable, "-m", "llm", "-m", model, "-o", "temperature", "0", *options, text]
    environment = os.environ | {"LLM_USER_PATH": FOLDER.name}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def prints_answers():
    for options in ([], ["--no-stream"]):
        ran = asked(TEXT, *options)
        assert ran.stdout.strip() == ANSWER, ran


def answers_in_the_form_of_a_schema():
    fields = {"type": "object", "properties": {"capital": {"type": "string"}}, "required": ["capital"]}
    ran = asked(TEXT_FOR_JSON, "--schema", json.dumps(fields))
    assert json.loads(ran.stdout) == {"capital": "Paris"}, ran


def says_what_went_wrong():
    ran = asked(TEXT, model="wrong")
    assert ran.returncode != 0 and "the API key is invalid" in ran.stderr, ran


run(prints_answers, answers_in_the_form_of_a_schema, says_what_went_wrong)
