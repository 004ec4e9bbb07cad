//! Tests of all documents: their links, their words, and the tests that the rules cite.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files below `folder` with this suffix, sorted.
pub(crate) fn with_suffix(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(suffix) {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// All documents of the repository.
fn documents() -> Vec<PathBuf> {
    let root = root();
    let beside = fs::read_dir(&root).unwrap();
    let beside = beside.map(|entry| entry.unwrap().path());
    let beside = beside.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let below = ["crates", "docs", "scenarios", ".github"];
    let below = below.map(|folder| with_suffix(&root.join(folder), ".md"));
    beside.chain(below.concat()).collect()
}

/// The text without code blocks and code spans, which contain no links.
fn prose(text: &str) -> String {
    let blocks = text.split("```").step_by(2);
    let outside = blocks.collect::<Vec<_>>().join("\n");
    outside.split('`').step_by(2).collect()
}

/// The targets of the links of a document within the repository.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let targets = prose.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split([')', ' ']).next());
    let here = |target: &&str| !target.contains("://") && !target.starts_with("mailto:");
    targets.filter(here).map(str::to_owned).collect()
}

/// The URL fragment of a heading on the rendered page.
fn fragment(heading: &str) -> String {
    let kept = |c: char| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        _ => c.is_alphanumeric().then_some(c),
    };
    heading.to_lowercase().chars().filter_map(kept).collect()
}

/// The fragments of all headings; equal ones are numbered.
fn fragments(text: &str) -> Vec<String> {
    let mut seen = HashMap::new();
    let mut in_code = false;
    let mut fragments = Vec::new();
    for line in text.lines() {
        in_code ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if in_code || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let fragment = fragment(heading.trim());
        let earlier = seen.entry(fragment.clone()).or_insert(0);
        fragments.push(match *earlier {
            0 => fragment,
            n => format!("{fragment}-{n}"),
        });
        *earlier += 1;
    }
    fragments
}

/// The reason why a link is broken, if it is.
fn broken(document: &Path, target: &str) -> Option<String> {
    let (path, fragment) = target.split_once('#').unwrap_or((target, ""));
    let path = match path {
        "" => document.to_owned(),
        path => document.parent().unwrap().join(path),
    };
    if !path.exists() {
        return Some("there is no such file".to_owned());
    }
    if fragment.is_empty() || path.extension().is_none_or(|end| end != "md") {
        return None;
    }
    let known = fragments(&fs::read_to_string(path).unwrap());
    (!known.iter().any(|known| known == fragment)).then(|| format!("no heading, of {known:?}"))
}

#[test]
fn every_document_link_has_an_existing_target() {
    let (mut checked, mut wrong) = (0, Vec::new());
    for document in documents() {
        for target in links(&fs::read_to_string(&document).unwrap()) {
            checked += 1;
            if let Some(reason) = broken(&document, &target) {
                wrong.push(format!("{}: {target}: {reason}", document.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 100, "{checked} links");
}

/// A word that documents do not use: the word, its replacement, and the phrases in which it may occur.
struct Banned {
    word: String,
    replacement: String,
    allowed: Vec<String>,
}

fn banned() -> Vec<Banned> {
    let list = fs::read_to_string(root().join("docs/spec/words.tsv")).unwrap();
    let rows = list.lines().filter(|line| !line.starts_with('#'));
    let row = |line: &str| {
        let mut fields = line.split('\t');
        let word = fields.next().unwrap().to_owned();
        let replacement = fields.next().unwrap().to_owned();
        let allowed = fields.next().unwrap_or("").split(';');
        let allowed = allowed.filter(|phrase| !phrase.is_empty());
        let allowed = allowed.map(str::to_owned).collect();
        Banned {
            word,
            replacement,
            allowed,
        }
    };
    rows.map(row).collect()
}

/// Whether the lower-case text contains the phrase as whole words.
fn contains_word(text: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !is_part(before) && !is_part(after)
    })
}

#[test]
fn documents_use_no_word_of_the_list_of_banned_words() {
    let banned = banned();
    assert!(banned.len() > 10);
    let mut wrong = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        // Paragraphs, so that a phrase may be split over two lines.
        for paragraph in prose(&text).to_lowercase().split("\n\n") {
            let paragraph = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
            for Banned {
                word,
                replacement,
                allowed,
            } in &banned
            {
                let mut rest = paragraph.clone();
                for phrase in allowed {
                    rest = rest.replace(phrase.as_str(), "");
                }
                if contains_word(&rest, word) {
                    let document = document.display();
                    wrong.push(format!(
                        "{document}: \"{word}\": use {replacement}: {paragraph}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The tests that the rules of decision cite: the file below `crates` and the function.
fn cited(rules: &str) -> Vec<(String, String)> {
    let (mut cited, mut in_tests, mut file) = (Vec::new(), false, None);
    for line in rules.lines() {
        if line.starts_with("**") || line.starts_with('#') {
            in_tests = line.starts_with("**Tests");
        }
        if line.starts_with("- ") {
            file = None;
        }
        for span in line.split('`').skip(1).step_by(2).filter(|_| in_tests) {
            let name = span.rsplit("::").next().unwrap();
            let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if span.ends_with(".rs") {
                file = Some(span.to_owned());
            } else if name.matches('_').count() > 1
                && name.chars().all(is_name)
                && let Some(file) = &file
            {
                cited.push((file.clone(), name.to_owned()));
            }
        }
    }
    cited
}

#[test]
fn every_test_that_the_rules_cite_stands_in_its_file() {
    let rules = fs::read_to_string(root().join("docs/spec/rules.md")).unwrap();
    let cited = cited(&rules);
    assert!(cited.len() > 100, "{} tests", cited.len());
    let is_missing = |(file, name): &&(String, String)| {
        let text = fs::read_to_string(root().join("crates").join(file)).unwrap_or_default();
        !text.contains(&format!("fn {name}("))
    };
    let missing = cited.iter().filter(is_missing).collect::<Vec<_>>();
    assert!(missing.is_empty(), "{missing:#?}");
}
