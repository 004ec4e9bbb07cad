//! Tests of `relent run` on a terminal: the command gets it when it needs it, and the shell gets it back.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use nix::pty::openpty;
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::{Pid, tcgetpgrp};

use crate::run_support::{HANG_TIMEOUT, code, eventually, finish, parse_pid, pid};

const RELENT: &str = env!("CARGO_BIN_EXE_relent");

/// A process in its own session, at a terminal that the test controls.
struct Session {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
}

impl Session {
    fn start(program: &[impl AsRef<OsStr>]) -> Self {
        let pty = openpty(None, None).unwrap();
        let terminal = File::from(pty.slave);
        // `setsid` finds the terminal on its standard input.
        let child = Command::new("setsid")
            .arg("--ctty")
            .args(program)
            .stdin(terminal.try_clone().unwrap())
            .stdout(terminal.try_clone().unwrap())
            .stderr(terminal)
            .spawn()
            .unwrap();
        let keyboard = File::from(pty.master);
        let mut screen = keyboard.try_clone().unwrap();
        let (send, receive) = channel();
        thread::spawn(move || {
            let mut buf = [0; 4096];
            // The last process to leave ends the reading with an error.
            while let Ok(n) = screen.read(&mut buf) {
                if n == 0 || send.send(buf[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            keyboard,
            screen: receive,
            seen: String::new(),
        }
    }

    fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until `text` is on the screen, after the previously expected text.
    fn expect(&mut self, text: &str) {
        let end = self.expect_more(text);
        self.seen.drain(..end);
    }

    /// Waits until `text` is on the screen and returns where it ends.
    fn expect_more(&mut self, text: &str) -> usize {
        loop {
            if let Some(at) = self.seen.find(text) {
                return at + text.len();
            }
            match self.screen.recv_timeout(HANG_TIMEOUT) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(e) => panic!("expected {text:?}, saw {:?}: {e}", self.seen),
            }
        }
    }

    fn foreground(&self) -> Pid {
        tcgetpgrp(&self.keyboard).unwrap()
    }

    /// Waits for the line with the process id of the command, which is also that of its group.
    fn expect_command(&mut self) -> Pid {
        self.expect("pid ");
        self.expect_more(".");
        parse_pid(&self.seen[..self.seen.find('.').unwrap()])
    }

    fn expect_foreground(&self, group: Pid) {
        eventually("the terminal is handed over", || self.foreground() == group);
    }

    /// Waits until the first program of the session is in the foreground.
    fn expect_back(&self) {
        self.expect_foreground(pid(&self.child));
    }

    fn end(self) -> i32 {
        code(&finish(self.child))
    }
}

/// `relent run OPTIONS -- sh -c SCRIPT`, where the script first prints its process id.
fn relent(options: &[&'static str], script: &str) -> Vec<String> {
    let mut all = vec![RELENT, "run", "--initial", "10ms", "--jitter", "none"];
    all.extend_from_slice(options);
    all.extend(["--", "sh", "-c"]);
    let mut all: Vec<String> = all.into_iter().map(str::to_owned).collect();
    // Quoted so that the line that a shell echoes is not taken for the output.
    all.push(format!("echo p\"\"id $$. >&2; {script}"));
    all
}

/// As [`relent`], as a line to type at a shell. The script has no single quotes.
fn typed(options: &[&'static str], script: &str) -> String {
    let mut all = relent(options, script);
    let script = all.pop().unwrap();
    format!("{} '{script}'", all.join(" "))
}

#[test]
fn a_command_that_reads_the_terminal_gets_it() {
    let script = "read a; echo \"got $a\" >&2; [ $RELENT_ATTEMPT = 2 ]";
    let mut session = Session::start(&relent(&["--max-retries", "3"], script));
    for answer in ["hello", "again"] {
        let command = session.expect_command();
        session.expect_foreground(command);
        session.types(&format!("{answer}\n"));
        session.expect(&format!("got {answer}"));
    }
    assert_eq!(session.end(), 0);
}

#[test]
fn a_command_that_does_not_read_the_terminal_does_not_get_it() {
    // Otherwise `relent run -- curl … | less` would take the keyboard from `less`.
    let script = "while :; do sleep 0.02; done";
    let mut session = Session::start(&relent(&["--max-retries", "3"], script));
    session.expect_command();
    assert_eq!(session.foreground(), pid(&session.child));
    session.types("\x03");
    assert_eq!(session.end(), 130);
}

#[test]
fn ctrl_c_ends_the_run_also_when_the_command_has_the_terminal() {
    let mut session = Session::start(&relent(&["--max-retries", "1000"], "read a"));
    let command = session.expect_command();
    session.expect_foreground(command);
    session.types("\x03");
    assert_eq!(session.end(), 130);
}

#[test]
fn on_a_terminal_the_output_of_every_attempt_is_shown_immediately() {
    // The command sees the terminal, although another attempt may follow.
    let script = "[ -t 1 ] && echo s\"\"een; read a; echo \"got $a\"; [ $RELENT_ATTEMPT = 2 ]";
    let mut session = Session::start(&relent(&["--max-retries", "5"], script));
    for answer in ["hello", "again"] {
        session.expect_command();
        session.expect("seen");
        session.types(&format!("{answer}\n"));
        session.expect(&format!("got {answer}"));
    }
    assert_eq!(session.end(), 0);
}

#[test]
fn stream_never_shows_only_the_final_output_on_a_terminal() {
    let script = "[ -t 1 ] || echo p\"\"iped; [ $RELENT_ATTEMPT = 2 ]";
    let mut session = Session::start(&relent(&["--max-retries=5", "--stream=never"], script));
    session.expect("piped");
    assert_eq!(session.end(), 0);
}

#[test]
fn a_notice_explains_buffered_output_on_a_terminal() {
    let mut session = Session::start(&["sh", "-i", "-m"]);
    let script = "while :; do echo again; sleep 0.1; done";
    session.types(&format!(
        "{} | cat\n",
        typed(&["--max-retries", "3"], script)
    ));
    session.expect_command();
    session.expect("--stream passes it on immediately");
    session.types("\x03");
    session.types("exit 3\n");
    assert_eq!(session.end(), 3);
}

#[test]
fn the_terminal_echo_is_restored_after_a_killed_command() {
    let options = ["--max-retries", "0", "--attempt-timeout", "3s"];
    let mut session = Session::start(&relent(&options, "stty -echo; echo asking >&2; read a"));
    session.expect("asking");
    let keyboard = session.keyboard.try_clone().unwrap();
    assert_eq!(session.end(), 124);
    assert!(
        tcgetattr(&keyboard)
            .unwrap()
            .local_flags
            .contains(LocalFlags::ECHO)
    );
}

#[test]
fn ctrl_z_without_a_shell_is_ignored_as_the_kernel_would() {
    let script = "read a; echo \"got $a\" >&2";
    let mut session = Session::start(&relent(&["--max-retries", "3"], script));
    let command = session.expect_command();
    session.expect_foreground(command);
    session.types("\x1a");
    session.types("still here\n");
    session.expect("got still here");
    assert_eq!(session.end(), 0);
}

#[test]
fn ctrl_z_gives_the_shell_its_prompt_back_and_fg_continues() {
    let mut session = Session::start(&["sh", "-i", "-m"]);
    let script = "read a; echo \"got $a\" >&2; exit 5";
    session.types(&format!("{}\n", typed(&["--max-retries", "0"], script)));
    let command = session.expect_command();
    session.expect_foreground(command);
    session.types("\x1a");
    session.expect_back();
    session.types("echo prompt $((1 + 1))\n");
    session.expect("prompt 2");
    session.types("fg\n");
    session.expect_foreground(command);
    session.types("hello\n");
    session.expect("got hello");
    session.expect_back();
    session.types("exit $?\n");
    assert_eq!(session.end(), 5);
}

#[test]
fn a_job_in_the_background_stops_until_fg() {
    let mut session = Session::start(&["sh", "-i", "-m"]);
    let script = "read a; echo \"got $a\" >&2";
    session.types(&format!("{} &\n", typed(&["--max-retries", "3"], script)));
    let command = session.expect_command();
    let parent = format!("/proc/{command}/stat");
    eventually("relent is stopped", || {
        let stat = |path: &str| std::fs::read_to_string(path).unwrap();
        let relent = stat(&parent)
            .rsplit(')')
            .next()
            .unwrap()
            .split(' ')
            .nth(2)
            .unwrap()
            .to_owned();
        stat(&format!("/proc/{relent}/stat")).contains(") T ")
    });
    session.types("fg\n");
    session.expect_foreground(command);
    session.types("hello\n");
    session.expect("got hello");
    session.expect_back();
    session.types("exit $?\n");
    assert_eq!(session.end(), 0);
}

#[test]
fn a_prompt_on_the_terminal_works_when_stdin_is_a_pipe() {
    let mut session = Session::start(&["sh", "-i", "-m"]);
    // The pipe is read first: each process of a pipeline gives the terminal to its group when it starts,
    // and one that starts late would take it back from the command.
    let script = "read b; read a </dev/tty; echo \"$a and $b\"";
    session.types(&format!(
        "echo piped | {}\n",
        typed(&["--max-retries", "3"], script)
    ));
    let command = session.expect_command();
    session.expect_foreground(command);
    session.types("typed\n");
    session.expect("typed and piped");
    session.expect_back();
    session.types("exit $?\n");
    assert_eq!(session.end(), 0);
}
