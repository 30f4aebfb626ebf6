//! Pages of model files that are mapped into this process. llama.cpp reads a whole file through
//! its mapping, and copies the weights that it interleaves: their pages stay mapped, and the model
//! is in memory twice. The weights that it reads in the file can have huge pages, where the file
//! system has them.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::mm::{Advice, madvise};

use super::Weights;

/// Size of a huge page on x86-64, and on ARM64 with small pages of 4 KiB.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Bytes of a page's entry in `/proc/self/pagemap`.
const ENTRY_BYTES: usize = 8;
/// Bit of an entry: the page is in memory, and mapped.
const IS_PRESENT: u64 = 1 << 63;

/// Files whose mappings this process can find, even once it may open no other file.
#[derive(Debug)]
pub struct MappedFiles {
    names: Vec<PathBuf>,
    maps: File,
    /// Which pages are mapped; `None` if the system does not say it.
    pages: Option<File>,
    /// Size of such a page, which this process may not ask for later.
    page_bytes: usize,
}

impl MappedFiles {
    /// Opens what the system says of this process's mappings.
    ///
    /// # Errors
    /// The system does not say it.
    pub fn new<'a>(files: impl IntoIterator<Item = &'a File>) -> io::Result<Self> {
        let name = |file: &File| format!("/proc/self/fd/{}", file.as_raw_fd());
        let names = files.into_iter().map(|file| std::fs::read_link(name(file)));
        Ok(Self {
            names: names.collect::<io::Result<_>>()?,
            maps: File::open("/proc/self/maps")?,
            pages: File::open("/proc/self/pagemap").ok(),
            page_bytes: rustix::param::page_size(),
        })
    }

    /// Unmaps all pages of the files of these models, which stay in the system's cache. A page that
    /// is read again is mapped again.
    ///
    /// # Errors
    /// The mappings cannot be read, or the system does not unmap their pages.
    pub fn release_pages(&mut self, _loaded: &[&Weights]) -> io::Result<()> {
        let maps = self.read_maps()?;
        self.mappings(&maps).try_for_each(|mapping| mapping.release_pages())
    }

    /// Moves the weights that this process reads in the files into huge pages, and returns how many
    /// bytes have them; 0 if the system does not say which pages are mapped. That takes about a
    /// second for each GB, in which others may read them: call it when all of them have been read
    /// once.
    ///
    /// # Errors
    /// The file system, the kernel, or the memory does not have huge pages for them, or the
    /// mappings cannot be read.
    pub fn use_huge_pages(mut self) -> io::Result<usize> {
        let maps = self.read_maps()?;
        let Some(pages) = &self.pages else { return Ok(0) };
        let mut bytes = 0;
        for start in self.mappings(&maps).flat_map(|mapping| mapping.huge_pages()) {
            if !is_in_use(pages, self.page_bytes, start)? {
                continue;
            }
            match collapse(start).map_err(|e| (e.kind(), e)) {
                Ok(()) => bytes += HUGE_PAGE_BYTES,
                // Somebody else uses one of the pages.
                Err((io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy, _)) => {}
                Err((_, error)) => return Err(error),
            }
        }
        Ok(bytes)
    }

    /// The mappings of the files.
    fn mappings<'a>(&'a self, maps: &'a str) -> impl Iterator<Item = Mapping<'a>> {
        let all = maps.lines().filter_map(Mapping::read);
        all.filter(|mapping| mapping.is_of(&self.names))
    }

    fn read_maps(&mut self) -> io::Result<String> {
        let mut maps = String::new();
        self.maps.rewind()?;
        self.maps.read_to_string(&mut maps)?;
        Ok(maps)
    }
}

/// True if most small pages of a huge one at this address are mapped.
fn is_in_use(pages: &File, page_bytes: usize, start: usize) -> io::Result<bool> {
    let mut entries = vec![0; HUGE_PAGE_BYTES / page_bytes * ENTRY_BYTES];
    pages.read_exact_at(&mut entries, (start / page_bytes * ENTRY_BYTES) as u64)?;
    let entries = entries.as_chunks::<ENTRY_BYTES>().0;
    let mapped = entries.iter().filter(|entry| u64::from_ne_bytes(**entry) & IS_PRESENT != 0);
    Ok(mapped.count() * 4 >= entries.len() * 3)
}

/// Moves what is at an address into a huge page.
fn collapse(start: usize) -> io::Result<()> {
    let start = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: this changes where content is, and never the content.
    match unsafe { libc::madvise(start, HUGE_PAGE_BYTES, libc::MADV_COLLAPSE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A line of `/proc/self/maps`.
struct Mapping<'a> {
    start: usize,
    bytes: usize,
    /// Where it begins in the file.
    offset: usize,
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
        let offset = rest.split(' ').nth(1).and_then(number)?;
        let path = rest.find('/').and_then(|at| rest.get(at..))?;
        Some(Self { start, bytes: end.checked_sub(start)?, offset, is_writable, path })
    }

    /// Addresses of huge pages that it can have: whole ones, also in the file.
    fn huge_pages(&self) -> std::iter::StepBy<Range<usize>> {
        let end = self.start.saturating_add(self.bytes) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        let first = self.start.checked_next_multiple_of(HUGE_PAGE_BYTES).unwrap_or(end);
        let is_aligned = self.start % HUGE_PAGE_BYTES == self.offset % HUGE_PAGE_BYTES;
        (first..if is_aligned { end } else { first }).step_by(HUGE_PAGE_BYTES)
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
    use std::io::BufWriter;
    use std::path::Path;

    use super::*;
    use crate::hardware::Kernel;
    use crate::llama::LlamaModel;
    use crate::llama::context::tests::options;
    use crate::llama::kernel::register;
    use crate::model_file::memory_plan::LoadMode;
    use crate::tools::synth::{QUANTS, SHAPES, Synth};
    use crate::types::model::{Decoded, Model, Row};

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

    /// KiB of a file that are mapped, and in huge pages.
    fn mapped_kib(file: &Path) -> (u64, u64) {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let (mut is_of_file, mut mapped, mut huge) = (false, 0, 0);
        for line in maps.lines() {
            let (name, size) = line.split_once(':').unwrap_or_default();
            let size = || size.trim_end_matches("kB").trim().parse::<u64>().unwrap();
            match name {
                "Rss" if is_of_file => mapped += size(),
                "FilePmdMapped" | "ShmemPmdMapped" if is_of_file => huge += size(),
                // Names of figures begin with a capital letter; mappings of memory have no path.
                _ if !name.starts_with(|c: char| c.is_ascii_uppercase()) => {
                    let mapping = Mapping::read(line);
                    is_of_file = mapping.is_some_and(|it| it.is_of(&[file.to_path_buf()]));
                }
                _ => {}
            }
        }
        (mapped, huge)
    }

    /// Opens a file as the agent does, and returns the path by which it names it.
    fn open(file: &Path) -> (String, File, MappedFiles) {
        let opened = File::open(file).unwrap();
        let mapped = MappedFiles::new([&opened]).unwrap();
        (format!("/proc/self/fd/{}", opened.as_raw_fd()), opened, mapped)
    }

    #[test]
    fn pages_of_a_file_that_is_loaded_are_released() {
        register(Kernel::Baseline);
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/demo-model/flotilla-demo.gguf");
        let copy = std::env::temp_dir().join(format!("flotilla-mapped-{}", std::process::id()));
        std::fs::copy(demo, &copy).unwrap();
        let (path, _file, mut mapped) = open(&copy);
        let weights = Weights::load(&[path], LoadMode::Mmap).unwrap();
        let (before, _) = mapped_kib(&copy);
        mapped.release_pages(&[&weights]).unwrap();
        let (after, _) = mapped_kib(&copy);
        let whole = weights.sizes().bytes / 1024;
        assert!(before * 2 > whole && after * 10 < whole, "{before}, then {after} of {whole} KiB");
        std::fs::remove_file(&copy).unwrap();
    }

    #[test]
    fn weights_that_are_read_in_the_file_get_huge_pages_where_the_file_system_has_them() {
        register(Kernel::Baseline);
        // Linux has huge pages for files in memory; for those on a disk, some kernels.
        let memory = Path::new("/dev/shm");
        if !memory.is_dir() {
            return eprintln!("skipped: there are no files in memory");
        }
        let copy = memory.join(format!("flotilla-huge-{}.gguf", std::process::id()));
        let shape = SHAPES.iter().find(|shape| shape.name == "tiny-window").unwrap();
        let quant = QUANTS.iter().find(|quant| quant.name == "f16").unwrap();
        let mut out = BufWriter::new(File::create(&copy).unwrap());
        Synth::new(shape, quant).unwrap().write(&mut out, |_| {}).unwrap();
        drop(out);
        let (path, _file, mut mapped) = open(&copy);
        let weights = Weights::load(&[path], LoadMode::Mmap).unwrap();
        mapped.release_pages(&[&weights]).unwrap();
        let (_, _other, unused) = open(&copy);
        assert_eq!(unused.use_huge_pages().unwrap(), 0, "nothing has been read yet");
        let mut model = LlamaModel::new(weights, options(1, 32)).unwrap();
        let mut logits = || {
            let row = Row { token: 5, position: 0, seq: 0, logits: true };
            assert_eq!(model.decode(&[row], &|| false), Ok(Decoded::Whole));
            let logits = model.logits(0).to_vec();
            model.clear(0);
            logits
        };
        let before = logits();
        let moved = mapped.use_huge_pages();
        let (_, huge) = mapped_kib(&copy);
        std::fs::remove_file(&copy).unwrap();
        match moved {
            Ok(bytes) => assert!(bytes > 0 && huge * 1024 == bytes as u64, "{bytes}, {huge}"),
            // The kernel was built without them, or there is no memory for one.
            Err(error) => eprintln!("skipped: {error}"),
        }
        assert_eq!(logits(), before, "nothing is computed otherwise");
    }
}
