//! What is said about a command that is not there: most of them were meant for a shell.

use std::path::Path;

use super::child::CommandLine;

/// What a shell does itself, so that there is no such program on most systems.
const BUILTINS: [&str; 27] = [
    ".", ":", "[[", "alias", "bg", "cd", "declare", "eval", "exec", "exit", "export", "fg", "for",
    "if", "jobs", "let", "local", "pushd", "read", "return", "set", "shift", "source", "ulimit",
    "unset", "until", "while",
];

/// Words between commands, which a shell has to see as they are.
const OPERATORS: [&str; 9] = ["|", "||", "&", "&&", ";", ">", ">>", "<", "2>&1"];

/// What makes a word a piece of shell, with or without spaces.
const SYNTAX: [char; 12] = ['|', '&', ';', '<', '>', '(', ')', '$', '`', '*', '{', '\n'];

/// Says that a command was not found, and what was probably meant.
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
        return Some(
            "the file is there, but not the interpreter that its first line names".to_owned(),
        );
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
            "this is one word with spaces in it: leave out its quotes ({program}), or use: sh -c {}",
            script()
        ));
    }
    BUILTINS
        .contains(&first)
        .then(|| format!("{first} is a part of the shell, so use: sh -c {}", script()))
}

/// The command as one line of shell.
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
