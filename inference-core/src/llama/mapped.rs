//! Pages of model files that are mapped into this process. llama.cpp reads a whole file through
//! its mapping, and copies the weights that it interleaves: their pages stay mapped, and the model
//! is in memory twice.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use rustix::mm::{Advice, madvise};

use super::Weights;

/// Files whose mappings this process can find, even once it may open no other file.
#[derive(Debug)]
pub struct MappedFiles {
    names: Vec<PathBuf>,
    maps: File,
}

impl MappedFiles {
    /// Opens what the system says of this process's mappings.
    ///
    /// # Errors
    /// The system does not say it.
    pub fn new<'a>(files: impl IntoIterator<Item = &'a File>) -> io::Result<Self> {
        let name = |file: &File| format!("/proc/self/fd/{}", file.as_raw_fd());
        let names = files.into_iter().map(|file| std::fs::read_link(name(file)));
        Ok(Self { names: names.collect::<io::Result<_>>()?, maps: File::open("/proc/self/maps")? })
    }

    /// Unmaps all pages of the files of these models, which stay in the system's cache. A page that
    /// is read again is mapped again.
    ///
    /// # Errors
    /// The mappings cannot be read, or the system does not unmap their pages.
    pub fn release_pages(mut self, _loaded: &[&Weights]) -> io::Result<()> {
        let mut maps = String::new();
        self.maps.read_to_string(&mut maps)?;
        for mapping in maps.lines().filter_map(Mapping::read) {
            if mapping.is_of(&self.names) {
                mapping.release_pages()?;
            }
        }
        Ok(())
    }
}

/// A line of `/proc/self/maps`.
struct Mapping<'a> {
    start: usize,
    bytes: usize,
    is_writable: bool,
    path: &'a str,
}

impl<'a> Mapping<'a> {
    /// Reads a line: addresses, access, offset, device, inode, and path.
    fn read(line: &'a str) -> Option<Self> {
        let (addresses, rest) = line.split_once(' ')?;
        let (start, end) = addresses.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        let is_writable = rest.as_bytes().get(1) == Some(&b'w');
        let path = rest.find('/').and_then(|at| rest.get(at..))?;
        Some(Self { start, bytes: end.checked_sub(start)?, is_writable, path })
    }

    fn is_of(&self, files: &[PathBuf]) -> bool {
        !self.is_writable && files.iter().any(|file| file.as_os_str() == self.path)
    }

    fn release_pages(&self) -> io::Result<()> {
        let start = std::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: the mapping is of a file and cannot be written to, so that its pages have nothing
        // that is not in the file. The model that has mapped it lives, so that it is not gone.
        Ok(unsafe { madvise(start, self.bytes, Advice::LinuxDontNeed) }?)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::hardware::Kernel;
    use crate::llama::kernel::register;
    use crate::model_file::memory_plan::LoadMode;

    #[test]
    fn a_line_of_the_system_is_read() {
        let line = "7f6ab0000-7f6ab2000 r--s 00001000 fe:00 42   /models/a b.gguf";
        let mapping = Mapping::read(line).unwrap();
        assert_eq!((mapping.start, mapping.bytes), (0x0007_f6ab_0000, 0x2000));
        assert!(mapping.is_of(&["/models/a b.gguf".into()]));
        assert!(!mapping.is_of(&["/models/a".into()]));
        let writable = Mapping::read("1000-2000 rw-p 0 fe:00 42 /models/m").unwrap();
        assert!(!writable.is_of(&["/models/m".into()]));
        for line in ["", "1000-2000 rw-p 0 00:00 0", "x-y r--s 0 0 0 /m", "2000-1000 r--s 0 0 0 /m"]
        {
            assert!(Mapping::read(line).is_none(), "{line}");
        }
    }

    /// KiB of a file that are mapped.
    fn mapped_kib(file: &Path) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let (mut is_of_file, mut sum) = (false, 0);
        for line in maps.lines() {
            // Names of figures begin with a capital letter; mappings of memory have no path.
            if !line.starts_with(|c: char| c.is_ascii_uppercase()) {
                let mapping = Mapping::read(line);
                is_of_file = mapping.is_some_and(|mapping| mapping.is_of(&[file.to_path_buf()]));
            } else if let Some(size) = line.strip_prefix("Rss:").filter(|_| is_of_file) {
                sum += size.trim_end_matches("kB").trim().parse::<u64>().unwrap();
            }
        }
        sum
    }

    #[test]
    fn pages_of_a_file_that_is_loaded_are_released() {
        register(Kernel::Baseline);
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/demo-model/flotilla-demo.gguf");
        let copy = std::env::temp_dir().join(format!("flotilla-mapped-{}", std::process::id()));
        std::fs::copy(demo, &copy).unwrap();
        // As the agent names a file that it has open.
        let files = [File::open(&copy).unwrap()];
        let open_path = format!("/proc/self/fd/{}", files[0].as_raw_fd());
        let mapped = MappedFiles::new(&files).unwrap();
        let weights = Weights::load(&[open_path], LoadMode::Mmap).unwrap();
        let before = mapped_kib(&copy);
        mapped.release_pages(&[&weights]).unwrap();
        let after = mapped_kib(&copy);
        let whole = weights.sizes().bytes / 1024;
        assert!(before * 2 > whole && after * 10 < whole, "{before}, then {after} of {whole} KiB");
        std::fs::remove_file(&copy).unwrap();
    }
}
