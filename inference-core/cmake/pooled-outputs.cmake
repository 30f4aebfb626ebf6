# Contexts that make one vector of each text have no room for logits.
#
# llama.cpp reserves, and fills with zeros, a row of logits for every token of a batch, also where
# the result is a pooled vector and nothing writes or reads them: with a vocabulary of 250,000
# tokens a text of 4096 takes 4 GB. There is no parameter against it, so one line of
# llama-context.cpp is changed.

function(flotilla_pool_outputs)
    set(pooled "cparams.embeddings && cparams.pooling_type != LLAMA_POOLING_TYPE_NONE")
    flotilla_change_source(llama-context.cpp
        "bool has_logits     = true;" "bool has_logits = !(${pooled});")
endfunction()
