//! PURE. Tags of MiniMax M3, each after the same control token.

/// Precedes every tag.
pub(crate) const NAMESPACE: &str = "]<]minimax[>[";
pub(crate) const SECTION: &str = "]<]minimax[>[<tool_call>";
pub(crate) const SECTION_END: &str = "]<]minimax[>[</tool_call>";
pub(crate) const CALL: &str = "]<]minimax[>[<invoke name=\"";
pub(crate) const CALL_END: &str = "]<]minimax[>[</invoke>";
/// The name of an entry of a list.
pub(crate) const ITEM: &str = "item";
