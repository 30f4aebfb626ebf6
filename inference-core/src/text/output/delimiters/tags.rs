//! PURE. Tags of the notations with one tag for each parameter.

/// Tags of a notation with one tag for each parameter.
#[derive(Debug)]
pub(crate) struct Tags {
    /// Before and after the name.
    pub(crate) call: &'static str,
    pub(crate) call_close: &'static str,
    /// The next tag ends the name as well.
    pub(crate) name_ends_at_tag: bool,
    /// After the call, and after what encloses it.
    pub(crate) end: &'static str,
    pub(crate) around_end: &'static str,
    pub(crate) key: &'static str,
    pub(crate) key_close: &'static str,
    /// Between the key and the value; may be empty.
    pub(crate) value: &'static str,
    pub(crate) value_close: &'static str,
    /// Values are on separate lines.
    pub(crate) lines: bool,
    /// A quotation mark ends names and keys; attributes follow, which say whether a value is text.
    pub(crate) attributes: bool,
    /// A value may be in a CDATA section.
    pub(crate) cdata: bool,
}

impl Tags {
    pub(crate) fn is_call(&self, text: &str) -> bool {
        text == self.call
    }

    pub(crate) fn key_and_ends(&self) -> [&'static str; 3] {
        [self.key, self.end, self.around_end]
    }
}

const QWEN_TAGS: Tags = Tags {
    call: "<function=",
    call_close: ">",
    name_ends_at_tag: false,
    end: "</function>",
    around_end: "</tool_call>",
    key: "<parameter=",
    key_close: ">",
    value: "",
    value_close: "</parameter>",
    lines: true,
    attributes: false,
    cdata: false,
};
pub(crate) static QWEN_STYLE: Tags = QWEN_TAGS;
pub(crate) static SEED_STYLE: Tags =
    Tags { around_end: "</seed:tool_call>", lines: false, ..QWEN_TAGS };
const GLM_TAGS: Tags = Tags {
    call: "<tool_call>",
    call_close: "\n",
    name_ends_at_tag: true,
    end: "</tool_call>",
    around_end: "",
    key: "<arg_key>",
    key_close: "</arg_key>",
    value: "<arg_value>",
    value_close: "</arg_value>",
    lines: false,
    attributes: false,
    cdata: false,
};
pub(crate) static GLM_STYLE: Tags = GLM_TAGS;
// Hy3: https://github.com/vllm-project/vllm/blob/main/vllm/tool_parsers/hy_v3_tool_parser.py
const HY3_STYLE_TAGS: Tags = Tags {
    call_close: "<tool_sep>",
    name_ends_at_tag: false,
    around_end: "</tool_calls>",
    ..GLM_TAGS
};
pub(crate) static HY3_STYLE: Tags = HY3_STYLE_TAGS;
pub(crate) static HY3_SUFFIXED_STYLE: Tags = Tags {
    call: "<tool_call:opensource>",
    call_close: "<tool_sep:opensource>",
    end: "</tool_call:opensource>",
    around_end: "</tool_calls:opensource>",
    key: "<arg_key:opensource>",
    key_close: "</arg_key:opensource>",
    value: "<arg_value:opensource>",
    value_close: "</arg_value:opensource>",
    ..HY3_STYLE_TAGS
};
// MiniCPM 5: https://github.com/sgl-project/sglang,
// python/sglang/srt/function_call/minicpm5_detector.py
pub(crate) static MINICPM_STYLE: Tags = Tags {
    call: "<function name=\"",
    key: "<param name=\"",
    value_close: "</param>",
    end: "</function>",
    around_end: "",
    cdata: true,
    ..MINIMAX_TAGS
};
// DeepSeek V3.2, from its template:
// https://github.com/ggml-org/llama.cpp/blob/master/models/templates/DeepSeek-V3.2.jinja
const DSML_TAGS: Tags = Tags {
    call: "<｜DSML｜invoke name=\"",
    end: "</｜DSML｜invoke>",
    around_end: "</｜DSML｜function_calls>",
    key: "<｜DSML｜parameter name=\"",
    key_close: ">",
    value_close: "</｜DSML｜parameter>",
    attributes: true,
    ..MINIMAX_TAGS
};
pub(crate) static DSML_STYLE: Tags = DSML_TAGS;
// DeepSeek V4:
// https://github.com/vllm-project/vllm/blob/main/vllm/tool_parsers/deepseekv4_tool_parser.py
pub(crate) static DSML_V4_STYLE: Tags = Tags { around_end: "</｜DSML｜tool_calls>", ..DSML_TAGS };
pub(crate) static MINIMAX_STYLE: Tags = MINIMAX_TAGS;
const MINIMAX_TAGS: Tags = Tags {
    call: "<invoke name=\"",
    call_close: "\">",
    name_ends_at_tag: false,
    end: "</invoke>",
    around_end: "</minimax:tool_call>",
    key: "<parameter name=\"",
    key_close: "\">",
    value: "",
    value_close: "</parameter>",
    lines: false,
    attributes: false,
    cdata: false,
};
