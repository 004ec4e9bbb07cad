//! Starts the server and the client processes of a run, and collects their output.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use relent_sim::{Arrivals, Metrics, Observed, RequestOutcome, Scenario};

use crate::agreement::{self, Share};
use crate::case::Case;
use crate::clock::{Lag, Lateness, machine_time, wall_clock};
use crate::wire::{AttemptRecord, Message};

/// The most client processes on the machine. If a scenario has more, each of them runs the clients of several, which
/// share only connections.
const MAX_CLIENT_PROCESSES: u32 = 20;
/// The time from the start command to the start.
const TIME_BEFORE_START: Duration = Duration::from_millis(500);
/// The time that the processes have to get ready, and to report.
const MAX_PREPARATION: Duration = Duration::from_secs(300);

/// The measurements of a run over sockets.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The metrics, by the simulator's rules.
    pub metrics: Metrics,
    /// The requests that ended, by their numbers among those of the run.
    pub ended: Vec<(u64, RequestOutcome)>,
    /// The attempts that reached the service.
    pub arrivals: Vec<AttemptRecord>,
    /// Services that had an effect, by the service's own count.
    pub executions: u64,
    /// The greatest lag of the processes.
    pub late: Lateness,
    /// The machine's lag that counts: in a herd the maximum, since everything happens simultaneously.
    pub machine: Lag,
    /// The shares of the machine's time.
    pub share: Share,
    /// Attempts that ended in a way that the simulator does not have, by that way.
    pub odd: BTreeMap<String, u64>,
}

impl Measured {
    /// Whether the machine disturbed the run, so that numbers that depend on time prove nothing.
    #[must_use]
    pub fn disturbed(&self) -> bool {
        agreement::disturbed(self.machine, self.share)
    }
}

/// Why there was no run.
#[derive(Debug)]
pub struct NoRun(String);

impl fmt::Display for NoRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoRun {}

impl From<String> for NoRun {
    fn from(what: String) -> Self {
        Self(what)
    }
}

/// Runs the case over sockets, with processes of this program.
///
/// The processes always end: they are stopped when this returns, and stop by themselves when this process ends.
///
/// # Errors
/// The case cannot run over sockets; a process cannot be started, ends too soon or takes too long.
pub fn measure(program: &Path, case: &Case) -> Result<Measured, NoRun> {
    let scenario = case.scenario()?;
    let (tell, said) = channel();
    let mut server = Process::start(program, "serve", case, &[], &tell)?;
    let address = ready(&said, 1)?.pop().unwrap_or_default();
    let parts = scenario.clients.processes.min(MAX_CLIENT_PROCESSES);
    let mut clients = Vec::new();
    for part in 0..parts {
        let own = [
            format!("--address={address}"),
            format!("--part={part}"),
            format!("--parts={parts}"),
        ];
        clients.push(Process::start(program, "ask", case, &own, &tell)?);
    }
    ready(&said, parts)?;
    let (began, taken) = (Instant::now(), machine_time());
    let start = wall_clock() + TIME_BEFORE_START.as_nanos();
    for process in clients.iter_mut().chain([&mut server]) {
        process.tell(&format!("start {start}"))?;
    }

    let mut gathered = Collected::default();
    gathered.listen(&said, parts, lasts(&scenario))?;
    server.tell("stop")?;
    gathered.listen(&said, 1, MAX_PREPARATION)?;
    let lasted = began.elapsed();
    let taken = taken.zip(machine_time());
    let taken = taken.map_or(Duration::ZERO, |(before, after)| {
        after.saturating_sub(before)
    });
    for process in clients.iter_mut().chain([&mut server]) {
        process.end()?;
    }
    let outcomes = gathered.ended.iter().map(|(_, outcome)| *outcome);
    let observed = Observed {
        outcomes: outcomes.collect(),
        attempts: gathered.arrivals.iter().map(|arrival| arrival.at).collect(),
        executions: gathered.executions,
    };
    let late = gathered.late;
    let machine = match scenario.clients.arrivals {
        Arrivals::Herd { .. } => Lag {
            usual: late.machine.worst,
            ..late.machine
        },
        _ => late.machine,
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let whole = lasted.as_secs_f64() * processors as f64;
    let own = Duration::from_nanos(gathered.used);
    let share = Share {
        own: own.as_secs_f64() / whole,
        others: taken.saturating_sub(own).as_secs_f64() / whole,
    };
    Ok(Measured {
        metrics: observed.metrics(&scenario),
        ended: gathered.ended,
        arrivals: gathered.arrivals,
        executions: gathered.executions,
        late,
        machine,
        share,
        odd: gathered.odd,
    })
}

/// The longest duration of a run.
fn lasts(scenario: &Scenario) -> Duration {
    let clients = &scenario.clients;
    let backlog = clients
        .backlog
        .map_or(0, |backlog| backlog.at + backlog.over);
    let last = scenario.arrivals_end().max(backlog);
    Duration::from_nanos(last.saturating_add(clients.deadline)) + MAX_PREPARATION
}

/// Waits until this many processes are ready; returns their messages.
fn ready(said: &Receiver<Result<Message, String>>, count: u32) -> Result<Vec<String>, NoRun> {
    let end = Instant::now() + MAX_PREPARATION;
    let mut words = Vec::new();
    while words.len() < count as usize {
        if let Message::Ready(word) = next(said, end)? {
            words.push(word);
        }
    }
    Ok(words)
}

fn next(said: &Receiver<Result<Message, String>>, end: Instant) -> Result<Message, NoRun> {
    let left = end.saturating_duration_since(Instant::now());
    match said.recv_timeout(left) {
        Ok(said) => Ok(said?),
        Err(RecvTimeoutError::Timeout) => Err(NoRun("a process takes too long".to_owned())),
        Err(RecvTimeoutError::Disconnected) => Err(NoRun("all processes are gone".to_owned())),
    }
}

#[derive(Default)]
struct Collected {
    ended: Vec<(u64, RequestOutcome)>,
    arrivals: Vec<AttemptRecord>,
    executions: u64,
    late: Lateness,
    used: u64,
    odd: BTreeMap<String, u64>,
}

impl Collected {
    /// Reads until this many processes have reported everything.
    fn listen(
        &mut self,
        said: &Receiver<Result<Message, String>>,
        count: u32,
        most: Duration,
    ) -> Result<(), NoRun> {
        let end = Instant::now() + most;
        let mut ended = 0;
        while ended < count {
            match next(said, end)? {
                Message::Ready(_) => {}
                Message::Request(name, outcome) => self.ended.push((name, outcome)),
                Message::Attempt(arrival) => self.arrivals.push(arrival),
                Message::Executions(count) => self.executions += count,
                Message::Late(late) => self.late = self.late.max(late),
                Message::Used(nanos) => self.used += nanos,
                Message::Odd(count, what) => *self.odd.entry(what).or_default() += count,
                Message::End => ended += 1,
            }
        }
        Ok(())
    }
}

/// A process that is stopped when this value is dropped.
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Process {
    fn start(
        program: &Path,
        role: &str,
        case: &Case,
        own: &[String],
        tell: &Sender<Result<Message, String>>,
    ) -> Result<Self, NoRun> {
        let mut child = Command::new(program)
            .arg(role)
            .args(case.arguments())
            .args(own)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| NoRun(format!("{}: {error}", program.display())))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let (tell, role) = (tell.clone(), role.to_owned());
        thread::spawn(move || {
            let lines = stdout
                .into_iter()
                .flat_map(|out| BufReader::new(out).lines());
            let mut ended = false;
            for line in lines {
                let said = line.map_err(|error| error.to_string());
                let said = said.and_then(|line| {
                    line.parse()
                        .map_err(|e: crate::wire::Unreadable| e.to_string())
                });
                ended |= said == Ok(Message::End);
                if tell.send(said).is_err() {
                    return;
                }
            }
            if !ended {
                let _ = tell.send(Err(format!("a process to {role} ended before its time")));
            }
        });
        Ok(Self { child, stdin })
    }

    fn tell(&mut self, line: &str) -> Result<(), NoRun> {
        let told = self.stdin.as_mut().map(|stdin| writeln!(stdin, "{line}"));
        told.unwrap_or(Ok(()))
            .map_err(|error| NoRun(format!("a process does not listen: {error}")))
    }
}

impl Process {
    /// Waits until it has ended by itself.
    fn end(&mut self) -> Result<(), NoRun> {
        self.stdin = None;
        let end = Instant::now() + MAX_PREPARATION;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(NoRun(format!("a process ended with {status}"))),
                Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(2)),
                Ok(None) => return Err(NoRun("a process does not end".to_owned())),
                Err(error) => return Err(NoRun(error.to_string())),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stdin = None;
        // Killing fails if the process has already ended, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
