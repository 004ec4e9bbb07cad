//! Tests of the package of each crate.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::documents::{root, with_suffix};

const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// The folders of the crates.
fn crates() -> Vec<PathBuf> {
    let folders = fs::read_dir(root().join("crates")).unwrap();
    let folders = folders.map(|entry| entry.unwrap().path());
    let crates: Vec<_> = folders
        .filter(|path| path.join("Cargo.toml").exists())
        .collect();
    assert!(crates.len() >= 8, "{crates:?}");
    crates
}

/// The files that cargo puts into the package of the crate in `folder`.
fn packaged(folder: &Path) -> Vec<String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let listed = Command::new(cargo)
        .args(["package", "--list", "--allow-dirty", "--offline"])
        .current_dir(folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&listed.stderr);
    assert!(listed.status.success(), "{folder:?}: {said}");
    let files = String::from_utf8(listed.stdout).unwrap();
    files.lines().map(str::to_owned).collect()
}

#[test]
fn each_package_contains_its_readme_and_the_licence_texts() {
    for folder in crates() {
        let files = packaged(&folder);
        for name in ["README.md"].iter().chain(&LICENCES) {
            assert!(files.iter().any(|file| file == name), "{folder:?}: {name}");
        }
        for name in LICENCES {
            let text = |folder: &Path| fs::read_to_string(folder.join(name)).unwrap();
            assert!(
                text(&folder) == text(&root()),
                "{folder:?}: copy {name} from the root"
            );
        }
    }
}

/// A symbolic link becomes a small text file where Windows checks the repository out.
#[test]
fn no_package_contains_tests_or_symbolic_links() {
    for folder in crates() {
        for file in packaged(&folder) {
            let test = ["tests/", "proptest-regressions/", "benches/", "examples/"];
            let test = test.iter().any(|folder| file.starts_with(folder));
            assert!(!test, "{folder:?}: exclude {file}");
            let linked = Path::new(&file).ancestors();
            let linked = linked.filter(|part| !part.as_os_str().is_empty());
            let linked = linked.filter(|part| folder.join(part).is_symlink());
            assert_eq!(linked.count(), 0, "{folder:?}: {file}");
        }
    }
}

/// The files that the sources of a crate embed, or include as a module by path.
fn embedded(source: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(source).unwrap();
    let mut names = Vec::new();
    for start in ["include_str!(", "include_bytes!(", "#[path = "] {
        for rest in text.split(start).skip(1) {
            // The first piece of a `concat!` is the folder.
            let rest = rest.strip_prefix("concat!(").unwrap_or(rest);
            let name = rest
                .strip_prefix('"')
                .and_then(|name| name.split('"').next());
            names.extend(name);
        }
    }
    let folder = source.parent().unwrap();
    names.iter().map(|name| folder.join(name)).collect()
}

#[test]
fn no_crate_embeds_a_file_of_another_folder() {
    let mut found = 0;
    for folder in crates() {
        let inside = folder.canonicalize().unwrap();
        for source in with_suffix(&folder.join("src"), ".rs") {
            for file in embedded(&source) {
                let file = file.canonicalize().unwrap();
                let within = file.strip_prefix(&inside);
                let ok = within.is_ok_and(|file| !file.starts_with("tests"));
                assert!(ok, "{source:?}: {file:?} is not in the package");
                found += 1;
            }
        }
    }
    assert!(found >= 15, "{found} files");
}

/// The visible lines of the documentation in a source file.
fn documentation(source: &Path) -> Vec<String> {
    let text = fs::read_to_string(source).unwrap();
    let lines = text.lines().map(str::trim_start);
    let lines = lines.filter_map(|line| {
        let line = line.strip_prefix("//!").or(line.strip_prefix("///"))?;
        Some(line.strip_prefix(' ').unwrap_or(line).to_owned())
    });
    lines
        .filter(|line| line != "#" && !line.starts_with("# "))
        .collect()
}

/// Rustdoc compiles the example, so the README shows one that works.
#[test]
fn the_example_of_each_readme_is_in_the_rustdoc() {
    for folder in crates() {
        let readme = fs::read_to_string(folder.join("README.md")).unwrap();
        let Some((_, example)) = readme.split_once("```rust\n") else {
            assert!(
                readme.contains("```sh\n"),
                "{folder:?}: there is no example"
            );
            continue;
        };
        let (example, _) = example.split_once("```").unwrap();
        let example: Vec<_> = example.lines().filter(|line| !line.is_empty()).collect();
        let sources = with_suffix(&folder.join("src"), ".rs");
        let stands = sources.iter().any(|source| {
            let lines = documentation(source);
            let lines: Vec<_> = lines.iter().filter(|line| !line.is_empty()).collect();
            lines.windows(example.len()).any(|lines| {
                lines
                    .iter()
                    .zip(&example)
                    .all(|(line, example)| line == example)
            })
        });
        assert!(stands, "{folder:?}: take the example from the rustdoc");
    }
}
