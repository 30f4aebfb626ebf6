// What llama.cpp has in its staging header alone, of which the Rust bindings have nothing: hidden
// states of batches, and a reason to plan a context's memory anew.

#include "llama-ext.h"
#include "used_rows.h"

extern "C" {

// Makes batches output the hidden state of every row, or of every row that has logits. Otherwise the
// last layer computes only rows that have logits, in all graphs that can output hidden states.
void flotilla_output_hidden_states(llama_context * context, bool is_on, bool with_logits_alone) {
    llama_set_embeddings_nextn(context, is_on, !is_on || with_logits_alone);
}

// The hidden state after a row of the last batch; null if there is none.
const float * flotilla_hidden_state(llama_context * context, int row) {
    return llama_get_embeddings_nextn_ith(context, row);
}

// From now on, batches of this thread compute the logits of so many tokens alone, the first ones; 0 is all.
void flotilla_use_output_rows(int64_t rows) {
    flotilla::output_rows = rows;
}

// Lets the next batch of a context make a new graph.
void flotilla_plan_again(llama_context * context) {
    llama_set_embeddings_layer_inp(context, 0, false);
}

}
