//! Executes one instruction of a vector instruction level. The process dies of SIGILL if the
//! machine lacks it, so run this in a child process.

use std::arch::asm;

use crate::hardware::simd::Level;

/// Executes an instruction of `level`. Returns if the machine supports it; the error says why it
/// was not tried.
pub fn probe(level: Level) -> Result<(), String> {
    if Level::of(std::env::consts::ARCH).all(|l| l != level) {
        return Err(format!("{} is not of this CPU architecture", level.name()));
    }
    execute(level)
}

/// True if CPUID claims a level, whatever the kernel reports: libraries check CPUID. False on other
/// architectures, where only the kernel reports features.
pub fn is_claimed(level: Level) -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_claimed_x86(level);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = level;
        false
    }
}

#[cfg(target_arch = "x86_64")]
fn is_claimed_x86(level: Level) -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, __get_cpuid_max};
    let (most, _) = __get_cpuid_max(0);
    if most < 7 {
        return false;
    }
    // Source: Intel's Software Developer's Manual, volume 2A, CPUID.
    let (one, seven, more) = (__cpuid(1), __cpuid_count(7, 0), __cpuid_count(7, 1));
    let (register, bit) = match level {
        Level::Fma => (one.ecx, 12),
        Level::Sse42 => (one.ecx, 20),
        Level::Avx => (one.ecx, 28),
        Level::F16c => (one.ecx, 29),
        Level::Avx2 => (seven.ebx, 5),
        Level::Bmi2 => (seven.ebx, 8),
        Level::Avx512f => (seven.ebx, 16),
        Level::Avx512bw => (seven.ebx, 30),
        Level::Avx512vl => (seven.ebx, 31),
        Level::Avx512Vbmi => (seven.ecx, 1),
        Level::Avx512Vnni => (seven.ecx, 11),
        Level::AmxBf16 => (seven.edx, 22),
        Level::Avx512Fp16 => (seven.edx, 23),
        Level::AmxTile => (seven.edx, 24),
        Level::AmxInt8 => (seven.edx, 25),
        Level::AvxVnni => (more.eax, 4),
        Level::Avx512Bf16 => (more.eax, 5),
        _ => (0, 0),
    };
    register >> bit & 1 == 1
}

/// Executes one instruction on registers only. It changes the vector registers 0 to 2, `eax` and no
/// memory. The upper halves are cleared, so that code compiled for SSE does not slow down.
#[cfg(target_arch = "x86_64")]
macro_rules! on_registers {
    ($($line:literal),+) => {
        // SAFETY: the instructions touch the registers named as changed, and no memory and no
        // stack. A machine without them raises SIGILL, which ends the process: the caller wants to
        // find out exactly that.
        unsafe {
            asm!($($line),+, out("xmm0") _, out("xmm1") _, out("xmm2") _, out("eax") _,
                options(nomem, nostack));
        }
    };
}

#[cfg(target_arch = "x86_64")]
fn execute(level: Level) -> Result<(), String> {
    match level {
        Level::Sse42 => on_registers!("xor eax, eax", "crc32 eax, al"),
        Level::Avx => on_registers!("vaddps ymm0, ymm1, ymm2", "vzeroupper"),
        Level::Avx2 => on_registers!("vpaddd ymm0, ymm1, ymm2", "vzeroupper"),
        Level::Fma => on_registers!("vfmadd231ps ymm0, ymm1, ymm2", "vzeroupper"),
        Level::F16c => on_registers!("vcvtph2ps ymm0, xmm1", "vzeroupper"),
        Level::Bmi2 => on_registers!("rorx eax, eax, 3"),
        Level::AvxVnni => on_registers!("{{vex}} vpdpbusd ymm0, ymm1, ymm2", "vzeroupper"),
        Level::Avx512f => on_registers!("vaddps zmm0, zmm1, zmm2", "vzeroupper"),
        Level::Avx512bw => on_registers!("vpaddb zmm0, zmm1, zmm2", "vzeroupper"),
        // Only the 512-bit (EVEX) encoding has a rotation.
        Level::Avx512vl => on_registers!("vprold ymm0, ymm1, 3", "vzeroupper"),
        Level::Avx512Vnni => on_registers!("vpdpbusd zmm0, zmm1, zmm2", "vzeroupper"),
        Level::Avx512Vbmi => on_registers!("vpermb zmm0, zmm1, zmm2", "vzeroupper"),
        Level::Avx512Bf16 => on_registers!("vdpbf16ps zmm0, zmm1, zmm2", "vzeroupper"),
        Level::Avx512Fp16 => on_registers!("vaddph zmm0, zmm1, zmm2", "vzeroupper"),
        Level::AmxTile | Level::AmxInt8 | Level::AmxBf16 => return tiles(level),
        _ => return Err(format!("{} has no trial", level.name())),
    }
    Ok(())
}

/// Rows of a tile, and bytes per row.
#[cfg(target_arch = "x86_64")]
const TILE: (u8, u8) = (16, 64);

/// The operand of `ldtilecfg`: Intel's Software Developer's Manual, volume 1, 18.2.
#[cfg(target_arch = "x86_64")]
#[repr(C, align(64))]
struct TileConfig([u8; 64]);

#[cfg(target_arch = "x86_64")]
fn tile_config() -> TileConfig {
    let mut config = TileConfig([0; 64]);
    // Palette 1. Bytes per row are 16-bit numbers at offset 16, row counts are bytes at offset 48.
    config.0[0] = 1;
    for tile in 0..6 {
        config.0[16 + 2 * tile] = TILE.1;
        config.0[48 + tile] = TILE.0;
    }
    config
}

/// Requests tile state from the kernel, loads tiles and multiplies them.
#[cfg(target_arch = "x86_64")]
fn tiles(level: Level) -> Result<(), String> {
    let code = request_tiles();
    if code != 0 {
        return Err(format!("the kernel grants no tiles: error {}", -code));
    }
    let config = tile_config();
    let ones = [1u8; 16 * 64];
    let (config, ones) = (config.0.as_ptr(), ones.as_ptr());
    /// Loads three tiles, computes and releases them.
    macro_rules! compute {
        ($line:literal) => {
            // SAFETY: the configuration has the 64 bytes that are read, and each tile loads 16 rows
            // of 64 bytes with a stride of 64, which the numbers have. The tile registers are named
            // as changed. A machine without tiles ends the process with SIGILL.
            unsafe {
                asm!("ldtilecfg [{config}]", "tileloadd tmm1, [{ones} + {stride}]",
                    "tileloadd tmm2, [{ones} + {stride}]", "tilezero tmm0", $line, "tilerelease",
                    config = in(reg) config, ones = in(reg) ones, stride = in(reg) 64usize,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, options(readonly, nostack));
            }
        };
    }
    match level {
        Level::AmxInt8 => compute!("tdpbssd tmm0, tmm1, tmm2"),
        Level::AmxBf16 => compute!("tdpbf16ps tmm0, tmm1, tmm2"),
        _ => compute!("nop"),
    }
    Ok(())
}

/// Multiplies tiles of bytes in a loop, into four independent sums. Returns the number of products.
#[cfg(target_arch = "x86_64")]
pub(super) fn tile_products(turns: u64) -> Result<u64, String> {
    let code = request_tiles();
    if code != 0 {
        return Err(format!("the kernel grants no tiles: error {}", -code));
    }
    let config = tile_config();
    let config = config.0.as_ptr();
    // SAFETY: the configuration has the 64 bytes that are read. The instructions change the tile
    // registers and the flags, and no memory. A machine without tiles ends the process with SIGILL.
    unsafe {
        asm!("ldtilecfg [{config}]", "tilezero tmm4", "tilezero tmm5",
            "2:", "tdpbssd tmm0, tmm4, tmm5", "tdpbssd tmm1, tmm4, tmm5",
            "tdpbssd tmm2, tmm4, tmm5", "tdpbssd tmm3, tmm4, tmm5", "dec {turns}", "jnz 2b",
            "tilerelease", config = in(reg) config, turns = inout(reg) turns => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _,
            out("tmm5") _, options(readonly, nostack));
    }
    let (rows, bytes) = TILE;
    Ok(turns * 4 * u64::from(rows) * u64::from(rows) * u64::from(bytes))
}

/// True if tiles of this thread keep what they hold while it sleeps and others run. The process
/// dies of SIGILL if the machine lacks tiles.
#[cfg(target_arch = "x86_64")]
pub(super) fn keeps_tiles(fill: u8) -> bool {
    let (config, numbers) = (tile_config(), [fill; 16 * 64]);
    let mut kept = [0u8; 16 * 64];
    // SAFETY: as in `tiles`. Nothing that runs before the tile is stored uses tiles.
    unsafe {
        asm!("ldtilecfg [{config}]", "tileloadd tmm0, [{numbers} + {stride}]",
            config = in(reg) config.0.as_ptr(), numbers = in(reg) numbers.as_ptr(),
            stride = in(reg) 64usize, out("tmm0") _, options(readonly, nostack));
    }
    std::thread::park_timeout(std::time::Duration::from_millis(2));
    // SAFETY: as above; the 16 rows of 64 bytes that are stored are those of `kept`.
    unsafe {
        asm!("tilestored [{kept} + {stride}], tmm0", "tilerelease", kept = in(reg) kept.as_mut_ptr(),
            stride = in(reg) 64usize, options(nostack));
    }
    kept == numbers
}

/// `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`: returns 0, or a negative error.
#[cfg(target_arch = "x86_64")]
pub(super) fn request_tiles() -> i64 {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    let code: i64;
    // SAFETY: the call takes two numbers and no memory; the kernel changes rcx and r11 in a system
    // call.
    unsafe {
        asm!("syscall", inlateout("rax") ARCH_PRCTL => code, in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA, out("rcx") _, out("r11") _, options(nostack));
    }
    code
}

/// Executes one instruction by its encoding, so that the assembler need not know it.
#[cfg(target_arch = "aarch64")]
macro_rules! encoded {
    ($line:literal) => {
        // SAFETY: the instruction changes the vector, predicate and general registers that are
        // named, and no memory and no stack. A machine without it raises SIGILL.
        unsafe {
            asm!($line, out("v0") _, out("p0") _, out("x0") _, options(nomem, nostack));
        }
    };
}

#[cfg(target_arch = "aarch64")]
fn execute(level: Level) -> Result<(), String> {
    match level {
        Level::Neon => encoded!(".inst 0x4e20d400"), // fadd v0.4s, v0.4s, v0.4s
        Level::Dotprod => encoded!(".inst 0x4e829420"), // sdot v0.4s, v1.16b, v2.16b
        Level::I8mm => encoded!(".inst 0x4e82a420"), // smmla v0.4s, v1.16b, v2.16b
        Level::Bf16 => encoded!(".inst 0x6e42fc20"), // bfdot v0.4s, v1.8h, v2.8h
        Level::Fp16 => encoded!(".inst 0x4e401400"), // fadd v0.8h, v0.8h, v0.8h
        Level::Sve => encoded!(".inst 0x04bf5020"),  // rdvl x0, #1
        Level::Sve2 => encoded!(".inst 0x04a07400"), // sqrdmulh z0.s, z0.s, z0.s
        Level::Sme => encoded!(".inst 0x04bf5820"),  // rdsvl x0, #1
        _ => return Err(format!("{} has no trial", level.name())),
    }
    Ok(())
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn execute(level: Level) -> Result<(), String> {
    Err(format!("{} has no trial", level.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_program_is_compiled_for_runs() {
        // Every x86-64 machine that runs these tests supports the engine's baseline.
        #[cfg(target_arch = "x86_64")]
        for level in [Level::Sse42, Level::Avx, Level::Avx2, Level::Fma, Level::F16c, Level::Bmi2] {
            assert_eq!((is_claimed(level), probe(level)), (true, Ok(())), "{}", level.name());
        }
        #[cfg(target_arch = "aarch64")]
        assert_eq!(probe(Level::Neon), Ok(()));
    }

    #[test]
    fn levels_of_other_architectures_are_not_tried() {
        let other = if cfg!(target_arch = "x86_64") { Level::Neon } else { Level::Avx };
        assert!(probe(other).unwrap_err().contains("architecture"));
    }
}
