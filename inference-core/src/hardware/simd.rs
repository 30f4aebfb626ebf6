//! PURE. Levels of vector instructions: their names, and what the kernel claims.

use std::collections::BTreeSet;

use crate::types::unknown_name::UnknownName;
use serde::Serialize;

/// A level of vector instructions that llama.cpp has kernels for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are the instructions' own")]
pub enum Level {
    Sse42,
    Avx,
    Avx2,
    Fma,
    F16c,
    Bmi2,
    AvxVnni,
    Avx512f,
    Avx512bw,
    Avx512vl,
    Avx512Vnni,
    Avx512Vbmi,
    Avx512Bf16,
    Avx512Fp16,
    AmxTile,
    AmxInt8,
    AmxBf16,
    Neon,
    Dotprod,
    I8mm,
    Fp16,
    Bf16,
    Sve,
    Sve2,
    Sme,
}

/// Each level, its name here, and its flag in /proc/cpuinfo.
const X86_64: &[(Level, &str, &str)] = &[
    (Level::Sse42, "sse4_2", "sse4_2"),
    (Level::Avx, "avx", "avx"),
    (Level::Avx2, "avx2", "avx2"),
    (Level::Fma, "fma", "fma"),
    (Level::F16c, "f16c", "f16c"),
    (Level::Bmi2, "bmi2", "bmi2"),
    (Level::AvxVnni, "avx_vnni", "avx_vnni"),
    (Level::Avx512f, "avx512f", "avx512f"),
    (Level::Avx512bw, "avx512bw", "avx512bw"),
    (Level::Avx512vl, "avx512vl", "avx512vl"),
    (Level::Avx512Vnni, "avx512_vnni", "avx512_vnni"),
    (Level::Avx512Vbmi, "avx512_vbmi", "avx512vbmi"),
    (Level::Avx512Bf16, "avx512_bf16", "avx512_bf16"),
    (Level::Avx512Fp16, "avx512_fp16", "avx512_fp16"),
    (Level::AmxTile, "amx_tile", "amx_tile"),
    (Level::AmxInt8, "amx_int8", "amx_int8"),
    (Level::AmxBf16, "amx_bf16", "amx_bf16"),
];

const AARCH64: &[(Level, &str, &str)] = &[
    (Level::Neon, "neon", "asimd"),
    (Level::Dotprod, "dotprod", "asimddp"),
    (Level::I8mm, "i8mm", "i8mm"),
    (Level::Fp16, "fp16", "asimdhp"),
    (Level::Bf16, "bf16", "bf16"),
    (Level::Sve, "sve", "sve"),
    (Level::Sve2, "sve2", "sve2"),
    (Level::Sme, "sme", "sme"),
];

/// Support for a vector instruction level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Simd {
    /// Instruction level.
    #[serde(serialize_with = "name")]
    pub level: Level,
    /// True if the kernel or CPUID claims it.
    pub claimed: bool,
    /// True if an instruction ran in a child process; `None` if not tested.
    pub runs: Option<bool>,
}

fn name<S: serde::Serializer>(level: &Level, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(level.name())
}

impl Level {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        let found = X86_64.iter().chain(AARCH64).find(|(level, ..)| *level == self);
        found.map_or("unknown", |(_, name, _)| name)
    }

    /// All levels of a CPU architecture, given by its Rust name.
    pub fn of(architecture: &str) -> impl Iterator<Item = Self> {
        table(architecture).iter().map(|(level, ..)| *level)
    }
}

fn table(architecture: &str) -> &'static [(Level, &'static str, &'static str)] {
    match architecture {
        "x86_64" => X86_64,
        "aarch64" => AARCH64,
        _ => &[],
    }
}

impl std::str::FromStr for Level {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let found = X86_64.iter().chain(AARCH64).find(|(_, n, _)| *n == name);
        found.map(|(level, ..)| *level).ok_or_else(|| UnknownName::new("level", name, &[]))
    }
}

/// What the flags of /proc/cpuinfo claim.
pub fn claims(architecture: &str, flags: &BTreeSet<String>) -> Vec<Simd> {
    let claim = |(level, _, flag): &(Level, &str, &str)| Simd {
        level: *level,
        claimed: flags.contains(*flag),
        runs: None,
    };
    table(architecture).iter().map(claim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_found_by_their_names() {
        for architecture in ["x86_64", "aarch64"] {
            for level in Level::of(architecture) {
                assert_eq!(level.name().parse(), Ok(level));
            }
        }
        assert!("mmx".parse::<Level>().is_err());
        assert_eq!(Level::of("riscv64").count(), 0);
    }

    #[test]
    fn flags_of_the_kernel_become_claims() {
        let flags = ["avx2", "avx512vbmi"].map(String::from).into();
        let claimed: Vec<&str> =
            claims("x86_64", &flags).iter().filter(|s| s.claimed).map(|s| s.level.name()).collect();
        assert_eq!(claimed, ["avx2", "avx512_vbmi"]);
    }
}
