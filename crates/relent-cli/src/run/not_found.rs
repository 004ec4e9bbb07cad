//! The message for a command that was not found: most of them need a shell.

use std::path::Path;

use super::child::CommandLine;

/// Builtins of shells, for which most systems have no program.
const BUILTINS: [&str; 27] = [
    ".", ":", "[[", "alias", "bg", "cd", "declare", "eval", "exec", "exit", "export", "fg", "for",
    "if", "jobs", "let", "local", "pushd", "read", "return", "set", "shift", "source", "ulimit",
    "unset", "until", "while",
];

/// Operators between commands, which must not be quoted.
const OPERATORS: [&str; 9] = ["|", "||", "&", "&&", ";", ">", ">>", "<", "2>&1"];

/// Characters that indicate shell syntax within a word.
const SYNTAX: [char; 12] = ['|', '&', ';', '<', '>', '(', ')', '$', '`', '*', '{', '\n'];

/// Reports that a command was not found, and suggests a correction.
pub(super) fn not_found(command: &CommandLine) -> String {
    let program = command.program.to_string_lossy();
    let named = match program.contains(char::is_whitespace) || program.is_empty() {
        true => quoted(&program),
        false => program.clone().into_owned(),
    };
    let mut said = format!("cannot run {named}: command not found");
    if let Some(advice) = advice(&program, command) {
        said.push_str("; ");
        said.push_str(&advice);
    }
    said
}

fn advice(program: &str, command: &CommandLine) -> Option<String> {
    let script = || quoted(&line(program, command));
    if Path::new(program).is_file() {
        return Some("the file exists, but not the interpreter in its first line".to_owned());
    }
    if let Some((name, _)) = program.split_once('=')
        && is_name(name)
    {
        return Some(format!(
            "to set {name} for a command, use: env {}",
            line(program, command)
        ));
    }
    if program.contains(SYNTAX) {
        return Some(format!(
            "for a pipeline or other shell syntax, use: sh -c {}",
            script()
        ));
    }
    let mut words = program.split_whitespace();
    let first = words.next()?;
    if words.next().is_some() {
        return Some(format!(
            "this is one word with spaces: remove the quotes ({program}), or use: sh -c {}",
            script()
        ));
    }
    BUILTINS
        .contains(&first)
        .then(|| format!("{first} is a shell builtin, so use: sh -c {}", script()))
}

/// Formats the command as one line of shell.
fn line(program: &str, command: &CommandLine) -> String {
    let mut line = program.to_owned();
    for arg in &command.args {
        let arg = arg.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
        line.push(' ');
        if OPERATORS.contains(&&*arg) || !arg.is_empty() && arg.chars().all(plain) {
            line.push_str(&arg);
        } else {
            line.push_str(&quoted(&arg));
        }
    }
    line
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
