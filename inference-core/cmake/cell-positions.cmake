# Attention knows where the tokens of a pool's cells stand in their sequences.
#
# The mask says only which cells a row sees. The cells of a sequence need not lie in the order of
# its tokens, and sums in the order of the cells would differ in their last bits with what else the
# pool holds. So llama.cpp's cache puts the positions beside each mask that it fills
# (../kernels/positions.h), in a line that is added to llama-kv-cache.cpp.

function(flotilla_pass_cell_positions)
    set(begin "void llama_kv_cache::set_input_kq_mask(ggml_tensor * dst, const llama_ubatch * ubatch, bool causal_attn) const {")
    set(cells "v_cells[seq_to_stream[ubatch->seq_id[0][0]]]")
    # Attention over several pools at once is ggml's.
    flotilla_change_source(llama llama-kv-cache.cpp "${begin}" "${begin}
    if (dst->ne[3] == 1) flotilla::CellPositions::note(dst, flotilla::positions(${cells}).data());")
    set_source_files_properties("${CMAKE_BINARY_DIR}/flotilla/llama-kv-cache.cpp"
        TARGET_DIRECTORY llama
        PROPERTIES COMPILE_OPTIONS "-include;${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../memory/cells.h")
endfunction()
