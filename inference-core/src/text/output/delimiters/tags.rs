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
    pub(crate) attributes: Attributes,
    /// A value may be in a CDATA section.
    pub(crate) cdata: bool,
    /// A line break follows each value.
    pub(crate) break_after_value: bool,
    /// Opens the arguments as JSON instead; may be empty.
    pub(crate) json: &'static str,
}

/// What follows a name or a key in its tag, after a quotation mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attributes {
    /// Nothing, not even the mark.
    None,
    /// `string="true"` for a value that is text, `string="false"` for JSON.
    IsText,
    /// `type="string"` for a value that is text, the name of another type for JSON. `"` and `&` in
    /// keys are escaped.
    Type,
}

impl Attributes {
    /// True if the attributes of a value's tag say that it is text.
    pub(crate) fn is_text(self, attributes: &str) -> bool {
        match self {
            Self::None => false,
            Self::IsText => attributes.contains("string=\"true\""),
            Self::Type => attributes.contains("type=\"string\""),
        }
    }

    /// The key as the model means it.
    pub(crate) fn unescape(self, key: &str) -> String {
        match self {
            Self::Type => key.replace("&quot;", "\"").replace("&amp;", "&"),
            Self::None | Self::IsText => key.into(),
        }
    }

    /// The key as the model writes it.
    pub(crate) fn escape(self, key: &str) -> String {
        match self {
            Self::Type => key.replace('&', "&amp;").replace('"', "&quot;"),
            Self::None | Self::IsText => key.into(),
        }
    }
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
    attributes: Attributes::None,
    cdata: false,
    break_after_value: true,
    json: "",
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
    attributes: Attributes::None,
    cdata: false,
    break_after_value: true,
    json: "",
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
    break_after_value: false,
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
    attributes: Attributes::IsText,
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
    attributes: Attributes::None,
    cdata: false,
    break_after_value: true,
    json: "",
};
// Kimi K3, from its template:
// https://github.com/ggml-org/llama.cpp/blob/master/models/templates/Kimi-K3.jinja
pub(crate) static KIMI_K3_STYLE: Tags = Tags {
    call: "<|open|>call tool=\"",
    call_close: "<|sep|>",
    name_ends_at_tag: false,
    end: "<|close|>call<|sep|>",
    around_end: "<|close|>tools<|sep|>",
    key: "<|open|>argument key=\"",
    key_close: "<|sep|>",
    value: "",
    value_close: "<|close|>argument<|sep|>",
    lines: false,
    attributes: Attributes::Type,
    cdata: false,
    break_after_value: false,
    json: "<|open|>json type=\"object\"<|sep|>",
};
