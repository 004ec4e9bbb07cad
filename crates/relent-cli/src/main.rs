//! The `relent` command.

mod run;

use std::ffi::OsString;
use std::io::Write;
use std::time::Duration;

use run::{CommandLine, Run};

/// Relent's own errors, as `timeout` and `env` report theirs.
const OWN_ERROR: i32 = 125;

fn main() {
    let status = parse(std::env::args_os().skip(1)).and_then(|run| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| e.to_string())?;
        let status = runtime.block_on(run.run(say)).map_err(|e| e.to_string());
        // A thread that still waits for standard input or a slow reader must not delay the end.
        runtime.shutdown_background();
        status
    });
    std::process::exit(status.unwrap_or_else(|e| {
        say(&e);
        OWN_ERROR
    }));
}

fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "relent: {line}");
}

fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Run, String> {
    let usage = "usage: relent run [options] -- CMD...";
    if args.next().as_deref() != Some("run".as_ref()) {
        return Err(usage.to_owned());
    }
    let mut run = Run {
        command: CommandLine {
            program: OsString::new(),
            args: Vec::new(),
            output_regex: None,
        },
        max_retries: 10,
        wait: Duration::from_secs(1),
        attempt_timeout: None,
        retry_on_exit: None,
        stop_on_exit: None,
    };
    loop {
        let option = args
            .next()
            .and_then(|a| a.into_string().ok())
            .ok_or(usage)?;
        if option == "--" {
            break;
        }
        let value = args
            .next()
            .and_then(|a| a.into_string().ok())
            .ok_or(usage)?;
        let wrong = |e: &dyn std::fmt::Display| format!("{option} {value}: {e}");
        match option.as_str() {
            "--max-retries" => run.max_retries = value.parse().map_err(|e| wrong(&e))?,
            "--initial" => run.wait = milliseconds(&value).ok_or(usage)?,
            "--attempt-timeout" => {
                run.attempt_timeout = Some(milliseconds(&value).ok_or(usage)?);
            }
            "--retry-on-exit" => {
                run.retry_on_exit = Some(value.parse().map_err(|e| wrong(&e))?);
            }
            "--stop-on-exit" => run.stop_on_exit = Some(value.parse().map_err(|e| wrong(&e))?),
            "--retry-on-output" => {
                let regex = regex::bytes::Regex::new(&value).map_err(|e| wrong(&e))?;
                run.command.output_regex = Some(regex);
            }
            "--jitter" if value == "none" => {}
            _ => return Err(usage.to_owned()),
        }
    }
    run.command.program = args.next().ok_or(usage)?;
    run.command.args = args.collect();
    Ok(run)
}

fn milliseconds(text: &str) -> Option<Duration> {
    text.strip_suffix("ms")
        .and_then(|n| n.parse().ok())
        .map(Duration::from_millis)
}
