//! PURE. Split models: `name-00001-of-00003.gguf`, llama.cpp's naming scheme.

/// Maximum number of files per model.
const FILES_MAX: u32 = 1000;

/// Names of all files of a model, in order, if `name` is the first of several. Any other name,
/// including the other files of a split model, stands alone.
pub(crate) fn all_files(name: &str) -> Result<Vec<String>, String> {
    let alone = Ok(vec![name.to_string()]);
    let Some((stem, 1, count)) = parse(name) else { return alone };
    if count > FILES_MAX {
        return Err(format!("{name}: a model of {count} files is more than {FILES_MAX}"));
    }
    Ok((1..=count).map(|number| part_name(stem, number, count)).collect())
}

/// The name of one file of a model.
pub(crate) fn part_name(stem: &str, number: u32, count: u32) -> String {
    format!("{stem}-{number:05}-of-{count:05}.gguf")
}

/// The common stem of all names, the file's number from 1 on, and the number of files.
pub(crate) fn parse(name: &str) -> Option<(&str, u32, u32)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let five = |digits: &str| {
        let digits = Some(digits).filter(|d| d.len() == 5 && d.bytes().all(|b| b.is_ascii_digit()));
        digits?.parse::<u32>().ok()
    };
    let (number, count) = (five(number)?, five(count)?);
    (!stem.is_empty() && number >= 1 && number <= count).then_some((stem, number, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_file_names_all_the_others() {
        let names = ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"];
        assert_eq!(all_files(names[0]).unwrap(), names);
        assert_eq!(all_files("m-00001-of-00001.gguf").unwrap().len(), 1);
    }

    #[test]
    fn other_names_stand_for_themselves() {
        for name in [
            "m-00002-of-00003.gguf",
            "m.gguf",
            "-00001-of-00002.gguf",
            "m-00004-of-00003.gguf",
            "m-00000-of-00003.gguf",
            "m-1-of-3.gguf",
            "m-00001-of-00003.bin",
            "m-+0001-of-00003.gguf",
        ] {
            assert_eq!(all_files(name).unwrap(), [name]);
        }
        assert!(all_files("m-00001-of-99999.gguf").is_err());
    }
}
