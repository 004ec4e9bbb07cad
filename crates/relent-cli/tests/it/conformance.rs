//! `relent fetch` and `relent run` decide as the library does: the same scripts run through the binary and the
//! library, and their traces are compared. Real times are compared with the bounds that the trace itself
//! contains.

#[path = "../../../relent-reqwest/tests/it/conformance/cases.rs"]
mod cases;

use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;
use std::task::Poll;
use std::time::Duration;

use cases::{Case, Content, History, MILLI, SEED};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use relent::failure::Cause;
use relent::policy::{BudgetConfig, Pattern, RateLimitConfig};
use relent::random::{Random, SessionRandom};
use relent::trace::TraceJson;
use relent::{Backoff, Destination, Failure, Jitter, Policy, Summary, VirtualClock, retry_with};
use relent_reqwest::{Body, Client, default_builder};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fetch_support::finish;
use crate::scripted::Server;
use crate::support::relent;

/// Removes the times from a trace, so that only the decisions remain.
fn decided(trace: &Value) -> Value {
    let attempts = trace["attempts"].as_array().unwrap();
    let attempts = attempts.iter().map(|attempt| {
        let mut attempt = attempt.clone();
        let told = attempt.as_object_mut().unwrap();
        told.remove("started_ms");
        told.remove("ended_ms");
        if told["decision"] == "success" {
            // The library does not know the outcome as text.
            told.remove("outcome");
        }
        attempt
    });
    json!({
        "result": trace["result"],
        "reason": trace["reason"],
        "attempts": attempts.collect::<Vec<_>>(),
    })
}

fn decided_by(summary: &Summary) -> Value {
    let trace = serde_json::to_value(TraceJson::new(summary)).unwrap();
    decided(&trace)
}

/// Checks that no attempt started before its delay was over, or closer to the previous one than `apart`.
fn check_times(what: &str, trace: &Value, apart: Duration) {
    let attempts = trace["attempts"].as_array().unwrap();
    let time = |attempt: &Value, key: &str| attempt[key].as_f64().unwrap_or_default();
    for pair in attempts.windows(2) {
        let (ended, wait) = (time(&pair[0], "ended_ms"), time(&pair[0], "wait_ms"));
        let started = time(&pair[1], "started_ms");
        assert!(started >= ended + wait - 0.001, "{what}: {trace}");
        let least = time(&pair[0], "started_ms") + apart.as_secs_f64() * 1e3;
        // The machine may take a while from the decision to the start.
        assert!(started >= least - 10.0, "{what}: {trace}");
    }
}

/// A folder with the policy, and for the trace.
struct Files(TempDir);

impl Files {
    fn new(policy: &Policy) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = serde_json::to_string(policy).unwrap();
        std::fs::write(folder.path().join("policy.json"), text).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// `relent SUBCOMMAND` with this policy.
    fn command(&self, subcommand: &str, args: &[&str]) -> Command {
        let (policy, trace, seed) = (
            self.path("policy.json"),
            self.path("trace.json"),
            SEED.to_string(),
        );
        let options = ["--policy", &policy, "--trace", &trace, "--seed", &seed];
        let mut command = relent(&[&[subcommand], &options[..], args].concat());
        for name in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
            command.env_remove(name).env_remove(name.to_uppercase());
        }
        command
    }

    fn trace(&self) -> Value {
        let text = std::fs::read_to_string(Path::new(&self.path("trace.json"))).unwrap();
        serde_json::from_str(&text).unwrap()
    }
}

/// Receives the response of a case through the library, in this process.
fn received(case: &Case) -> Value {
    let server = Server::script(case.steps.clone());
    let plain = || default_builder().no_proxy().tls_certs_only([]);
    let client = Client::from_builder(plain, case.policy()).unwrap();
    let client = client.traced().random(|| SessionRandom::with_seed(SEED));
    let request = http::Request::builder()
        .method(case.method.clone())
        .uri(server.url("/"))
        .body(Body::from(case.content.bytes()))
        .unwrap();
    block_on(async {
        match client.download(request, &mut Vec::new()).await {
            Ok((_, summary)) => decided_by(&summary),
            Err(gave_up) => decided_by(gave_up.summary()),
        }
    })
}

#[test]
fn fetch_makes_the_same_decisions_as_a_library_download() {
    let all = [cases::outcomes(), cases::held_back(), cases::deadlines()];
    let sent_again = |case: &Case| matches!(case.content, Content::None | Content::Known);
    let all = all.into_iter().flatten();
    // The destination of a command has no other callers.
    let all = all.filter(|case| case.before == History::Nothing && sent_again(case));
    let mut played = 0;
    for case in all {
        let expected = received(&case);
        let files = Files::new(&case.policy());
        let server = Server::script(case.steps.clone());
        let (url, data) = (server.url("/"), files.path("data"));
        let mut args = vec!["-s", "-X", case.method.as_str(), &url];
        let from_file = format!("@{data}");
        if case.content == Content::Known {
            std::fs::write(&data, case.content.bytes()).unwrap();
            args.extend(["--data-binary", &from_file]);
        }
        finish(files.command("fetch", &args).spawn().unwrap());
        let trace = files.trace();
        assert_eq!(decided(&trace), expected, "{}", case.name);
        assert_eq!(server.count(), case.requests, "{}", case.name);
        let apart = match case.policy().rate_limit() {
            Some(rate) => Duration::from_secs_f64(1.0 / rate.limit.unwrap()),
            None => Duration::ZERO,
        };
        check_times(case.name, &trace, apart);
        played += 1;
    }
    assert!(played > 15, "{played}");
}

/// The end of an attempt of a command.
#[derive(Clone, Copy, Debug)]
enum End {
    Exit(i32),
    Killed,
    /// By its time limit.
    Never,
}

impl End {
    const fn script(self) -> &'static str {
        match self {
            Self::Exit(0) => "exit 0",
            Self::Exit(1) => "exit 1",
            Self::Exit(2) => "exit 2",
            Self::Exit(_) => "exit 69",
            Self::Killed => "kill -9 $$",
            Self::Never => "exec sleep 1000",
        }
    }

    async fn made(self) -> Result<(), Failure> {
        let cause = match self {
            Self::Exit(0) => return Ok(()),
            Self::Exit(status) => Cause::Exit(status),
            Self::Killed => Cause::Signal(9),
            Self::Never => pending().await,
        };
        Err(Failure::ambiguous().cause(cause))
    }
}

/// A command as a list of attempts; the last end repeats.
#[derive(Debug)]
struct Script {
    policy: Policy,
    ends: Vec<End>,
    apart: Duration,
}

impl Script {
    fn new(seed: u64) -> Self {
        let mut random = SessionRandom::with_seed(seed);
        let mut below = |most: u64| random.next_u64() % most;
        let backoff = match below(4) {
            0 => Backoff::None,
            1 => Backoff::constant(MILLI * 2),
            2 => Backoff::Decorrelated {
                initial: MILLI,
                factor: 3.0,
            },
            _ => Backoff::exponential(MILLI),
        };
        let jitter = match (&backoff, below(3)) {
            (Backoff::Decorrelated { .. }, _) | (_, 0) => Jitter::None,
            (_, 1) => Jitter::Full,
            _ => Jitter::Equal,
        };
        let mut policy = Policy::builder(backoff)
            .jitter(jitter)
            .max_delay(MILLI * 20)
            .max_retries(below(6) as u32);
        if below(3) == 0 {
            policy = policy.stop_on([Pattern::Exit(2, 2)]);
        }
        if below(4) == 0 {
            policy = policy.retry_on([Pattern::Exit(1, 69), Pattern::Timeout]);
        }
        if below(4) == 0 {
            policy = policy.budget(BudgetConfig {
                ratio: 0.0,
                per_second: 0.0,
                initial_tokens: 2.0,
                ..BudgetConfig::DEFAULT
            });
        }
        let mut apart = Duration::ZERO;
        if below(4) == 0 {
            apart = MILLI * 20;
            policy = policy.rate_limit(RateLimitConfig {
                burst: Some(1),
                ..RateLimitConfig::new(50.0)
            });
        }
        let ends: Vec<_> = (0..=below(4))
            .map(|_| match below(8) {
                0 => End::Exit(0),
                1 => End::Exit(2),
                2 => End::Exit(69),
                3 => End::Killed,
                4 if below(3) == 0 => End::Never,
                _ => End::Exit(1),
            })
            .collect();
        if ends.iter().any(|end| matches!(end, End::Never)) {
            policy = policy.attempt_timeout(MILLI * 150);
        }
        Self {
            policy: policy.build().unwrap(),
            ends,
            apart,
        }
    }

    fn end(&self, attempt: u32) -> End {
        let last = self.ends.len() - 1;
        self.ends[(attempt as usize - 1).min(last)]
    }

    /// The trace of the library, in virtual time.
    fn called(&self) -> Value {
        let there = Destination::new(&self.policy);
        let operation = |attempt: relent::Attempt| self.end(attempt.number).made();
        let call = retry_with(&self.policy, operation)
            .classify(|failure: &Failure| *failure)
            .destination(&there)
            .clock(VirtualClock::new())
            .seed(SEED)
            .traced();
        let (_, summary) = block_on(call.with_summary());
        decided_by(&summary)
    }

    /// The trace of the command.
    fn run(&self, options: &[&str], policy: &Policy) -> Value {
        let files = Files::new(policy);
        let arm = |(index, end): (usize, &End)| format!("{}) {};;", index + 1, end.script());
        let arms: String = self.ends.iter().enumerate().map(arm).collect();
        let last = self.ends[self.ends.len() - 1].script();
        let script = format!("case $RELENT_ATTEMPT in {arms} *) {last};; esac");
        let args = [&["-q"], options, &["--", "sh", "-c", &script]].concat();
        finish(files.command("run", &args).spawn().unwrap());
        files.trace()
    }
}

#[test]
fn run_makes_the_same_decisions_as_the_library() {
    let mut reasons = Vec::new();
    for seed in 0..60 {
        let script = Script::new(seed);
        let expected = script.called();
        let trace = script.run(&[], &script.policy);
        assert_eq!(decided(&trace), expected, "{seed}: {script:?}");
        check_times(&format!("{script:?}"), &trace, script.apart);
        reasons.push(expected["reason"].clone());
    }
    // The scripts must cover these reasons, otherwise the comparison shows nothing.
    for reason in [
        Value::Null,
        "retries_exhausted".into(),
        "permanent".into(),
        "budget".into(),
    ] {
        assert!(reasons.contains(&reason), "{reason} of {reasons:?}");
    }
}

/// The deadline of a command includes the time for ending it; that of the library does not.
#[test]
fn time_limits_end_a_run_like_a_library_call() {
    let policy = Policy::builder(Backoff::constant(MILLI * 30_000)).jitter(Jitter::None);
    let rate = RateLimitConfig {
        burst: Some(1),
        ..RateLimitConfig::new(0.001)
    };
    let at_once = policy.clone().backoff(Backoff::None).rate_limit(rate);
    for (policy, deadline, ends, reason) in [
        (policy.clone(), MILLI * 300, vec![End::Never], "deadline"),
        (policy, MILLI * 20_000, vec![End::Exit(1)], "deadline"),
        (at_once, MILLI * 20_000, vec![End::Exit(1)], "retry_later"),
    ] {
        let script = Script {
            policy: policy.clone().deadline(deadline).build().unwrap(),
            ends,
            apart: Duration::ZERO,
        };
        let expected = script.called();
        assert_eq!(expected["reason"], reason);
        let for_run = policy.deadline(deadline + MILLI * 100).build().unwrap();
        let trace = script.run(&["--kill-after", "100ms"], &for_run);
        assert_eq!(decided(&trace), expected, "{script:?}");
    }
}

#[test]
fn a_signal_during_a_delay_ends_a_run_like_a_cancelled_library_call() {
    let hour = Backoff::constant(MILLI * 3_600_000);
    let policy = Policy::builder(hour).jitter(Jitter::None).build().unwrap();
    let script = Script {
        policy,
        ends: vec![End::Exit(1)],
        apart: Duration::ZERO,
    };
    let expected = {
        let waits = Cell::new(false);
        let gone = poll_fn(|_| match waits.get() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        let call = retry_with(&script.policy, |attempt: relent::Attempt| {
            script.end(attempt.number).made()
        })
        .classify(|failure: &Failure| *failure)
        .clock(VirtualClock::new())
        .notify(|_| waits.set(true))
        .cancel_on(gone)
        .traced();
        decided_by(&block_on(call.with_summary()).1)
    };
    assert_eq!(expected["reason"], "cancelled");

    let server = Server::script([cases::answer(503, &[])]);
    let (files, url) = (Files::new(&script.policy), server.url("/"));
    for (subcommand, args) in [
        ("run", &["--", "sh", "-c", "exit 1"][..]),
        ("fetch", &[&url]),
    ] {
        let mut child = files.command(subcommand, args).spawn().unwrap();
        let said = BufReader::new(child.stderr.as_mut().unwrap()).lines();
        let waits = |line: &String| line.contains("next in 1h");
        assert!(said.map_while(Result::ok).any(|line| waits(&line)));
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
        assert_eq!(finish(child).status, 128 + Signal::SIGTERM as i32);
        let mut told = decided(&files.trace());
        // They differ only in the text of the outcome.
        let outcome = &mut told["attempts"][0]["outcome"];
        *outcome = expected["attempts"][0]["outcome"].clone();
        assert_eq!(told, expected, "{subcommand}");
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(future)
}
