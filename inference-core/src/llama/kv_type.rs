//! How a KV cache stores keys and values.

use std::fmt;
use std::str::FromStr;

use llama_cpp_sys_2 as sys;
use serde::{Deserialize, Serialize};

use crate::types::unknown_name::UnknownName;

/// Storage types of keys and of values. As text `TYPE` for both, or `KEYS/VALUES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KvType {
    keys: CellType,
    values: CellType,
}

/// A storage type; the names are ggml's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CellType {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q5_1,
    Q5_0,
    Q4_1,
    Q4_0,
}

impl KvType {
    /// Both in half precision.
    pub const F16: Self = Self::of(CellType::F16);
    /// Both quantized to 8 bits.
    pub const Q8_0: Self = Self::of(CellType::Q8_0);

    const fn of(both: CellType) -> Self {
        Self { keys: both, values: both }
    }

    /// The name of the type of keys, as llama.cpp spells it.
    pub fn key_name(self) -> &'static str {
        self.keys.name()
    }

    /// The name of the type of values.
    pub fn value_name(self) -> &'static str {
        self.values.name()
    }

    /// True if llama.cpp computes attention with them only with flash attention.
    pub fn needs_flash_attention(self) -> bool {
        !matches!(self.values, CellType::F32 | CellType::F16 | CellType::Bf16)
    }

    /// The types of keys and of values.
    pub(super) fn raw(self) -> (sys::ggml_type, sys::ggml_type) {
        (self.keys.raw(), self.values.raw())
    }
}

impl CellType {
    /// All types, most precise first.
    const ALL: [(&str, Self); 8] = [
        ("f32", Self::F32),
        ("f16", Self::F16),
        ("bf16", Self::Bf16),
        ("q8_0", Self::Q8_0),
        ("q5_1", Self::Q5_1),
        ("q5_0", Self::Q5_0),
        ("q4_1", Self::Q4_1),
        ("q4_0", Self::Q4_0),
    ];

    fn named(name: &str) -> Result<Self, UnknownName> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, kind)| *kind).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|(name, _)| *name).collect();
            UnknownName::new("KV type", name, &names)
        })
    }

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("f16", |(name, _)| name)
    }

    fn raw(self) -> sys::ggml_type {
        match self {
            Self::F32 => sys::GGML_TYPE_F32,
            Self::F16 => sys::GGML_TYPE_F16,
            Self::Bf16 => sys::GGML_TYPE_BF16,
            Self::Q8_0 => sys::GGML_TYPE_Q8_0,
            Self::Q5_1 => sys::GGML_TYPE_Q5_1,
            Self::Q5_0 => sys::GGML_TYPE_Q5_0,
            Self::Q4_1 => sys::GGML_TYPE_Q4_1,
            Self::Q4_0 => sys::GGML_TYPE_Q4_0,
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.keys == self.values {
            true => f.write_str(self.key_name()),
            false => write!(f, "{}/{}", self.key_name(), self.value_name()),
        }
    }
}

impl FromStr for KvType {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let (keys, values) = text.split_once('/').unwrap_or((text, text));
        Ok(Self { keys: CellType::named(keys)?, values: CellType::named(values)? })
    }
}

impl TryFrom<String> for KvType {
    type Error = UnknownName;

    fn try_from(text: String) -> Result<Self, UnknownName> {
        text.parse()
    }
}

impl From<KvType> for String {
    fn from(kind: KvType) -> Self {
        kind.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_have_a_type_together_or_one_each() {
        assert_eq!("q8_0".parse(), Ok(KvType::Q8_0));
        assert_eq!("f16/f16".parse(), Ok(KvType::F16));
        let apart: KvType = "q8_0/f16".parse().unwrap();
        assert_eq!((apart.key_name(), apart.value_name()), ("q8_0", "f16"));
        for wrong in ["", "/", "q8_0/", "/f16", "q8_0/f16/f16", "Q8_0", "q9_0"] {
            assert!(wrong.parse::<KvType>().is_err(), "{wrong}");
        }
        for text in ["bf16", "q8_0/q4_0", "f32/q5_1"] {
            let written = serde_json::to_string(&text.parse::<KvType>().unwrap()).unwrap();
            assert_eq!(written, format!("\"{text}\""));
            assert_eq!(serde_json::from_str(&written).ok(), text.parse::<KvType>().ok());
        }
        assert!(serde_json::from_str::<KvType>("\"q8_0/\"").is_err());
    }

    #[test]
    fn quantized_values_need_flash_attention_and_quantized_keys_do_not() {
        let needs = |text: &str| text.parse::<KvType>().unwrap().needs_flash_attention();
        assert!(needs("q8_0") && needs("f16/q4_0"));
        assert!(!needs("q8_0/f16") && !needs("bf16"));
    }
}
