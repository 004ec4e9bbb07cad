//! `sockets`: simulated and measured numbers, side by side.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a command")]

use std::error::Error;
use std::process::ExitCode;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use clap::{Parser, Subcommand};
use relent_harness::case::{Case, change};
use relent_harness::clients::{self, Share};
use relent_harness::compare::{compare, simulate, table};
use relent_harness::form::Form;
use relent_harness::processes::measure;
use relent_harness::server;

/// Runs scenarios of the simulator over sockets on 127.0.0.1, with a server and client processes,
/// and prints simulated and measured numbers side by side
#[derive(Parser, Debug)]
#[command(args_conflicts_with_subcommands = true)]
struct Sockets {
    #[command(subcommand)]
    role: Option<Role>,

    /// Built-in scenarios
    #[arg(default_values = ["blackout", "rate-limit", "stall"])]
    scenarios: Vec<String>,

    /// How they are scaled down
    #[arg(long, value_enum, default_value = "short")]
    form: Form,

    /// Presets, or files with a policy; off for no retries
    #[arg(
        long = "policy",
        value_delimiter = ',',
        default_value = "off,standard,patient"
    )]
    policies: Vec<String>,

    /// Run one policy after the other. Otherwise those of a scenario run concurrently, each with its own
    /// server and clients, which is faster
    #[arg(long)]
    alone: bool,

    /// Change a value of every scenario, such as clients.processes=10
    #[arg(long, value_name = "KEY=VALUE", value_parser = change)]
    set: Vec<(String, String)>,

    /// Put the service behind the layers of relent-server, in an axum service. The scenario needs a shedder:
    /// --set service.shedder.target=20ms
    #[arg(long)]
    layers: bool,

    /// Simulated runs to compare with
    #[arg(long, default_value = "50", value_parser = clap::value_parser!(u64).range(2..=10_000))]
    seeds: u64,

    /// The seed of the run over sockets, and the first of the simulated ones
    #[arg(long, default_value = "1")]
    seed: u64,
}

/// The role of a process in a run; the command starts them itself.
#[derive(Subcommand, Debug)]
enum Role {
    /// Be the server of a run
    #[command(hide = true)]
    Serve {
        #[command(flatten)]
        case: Case,
    },
    /// Be one of its client processes
    #[command(hide = true)]
    Ask {
        #[command(flatten)]
        case: Case,
        #[command(flatten)]
        share: Share,
        /// Where the server listens
        #[arg(long)]
        address: String,
    },
}

fn main() -> ExitCode {
    let sockets = Sockets::parse();
    let done = match &sockets.role {
        None => sockets.compare(),
        Some(role) => role.play(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sockets: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Role {
    fn play(&self) -> Result<(), Box<dyn Error>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        match self {
            Self::Serve { case } => {
                runtime.block_on(server::serve(&case.scenario()?, case.seed, case.layers))?;
            }
            Self::Ask {
                case,
                share,
                address,
            } => {
                let scenario = case.scenario()?;
                let policy = case.policy(&scenario)?;
                let blocked = Duration::from_millis(case.block_ms);
                let asked = clients::ask(&scenario, policy, case.seed, *share, blocked, address);
                runtime.block_on(asked)?;
            }
        }
        Ok(())
    }
}

impl Sockets {
    fn compare(&self) -> Result<(), Box<dyn Error>> {
        let program = std::env::current_exe()?;
        let (mut runs, mut disturbed) = (0, 0);
        let at_once = if self.alone { 1 } else { self.policies.len() };
        for name in &self.scenarios {
            let mut set = self.form.changes(name);
            set.extend(self.set.iter().cloned());
            let changes: Vec<_> = set.iter().map(|(key, to)| format!("{key}={to}")).collect();
            println!("{name}, with {}\n", changes.join(" "));
            let case = |policy: &String| Case {
                scenario: name.clone(),
                set: set.clone(),
                policy: policy.clone(),
                seed: self.seed,
                layers: self.layers,
                block_ms: 0,
            };
            let cases: Vec<Case> = self.policies.iter().map(case).collect();
            // Before any measurement, since it takes all processors.
            let mut compared = Vec::new();
            for case in cases {
                let scenario = case.scenario()?;
                let policy = case.policy(&scenario)?;
                let simulated = simulate(&scenario, &policy, self.seed, self.seeds);
                compared.push((case, scenario, simulated));
            }
            for together in compared.chunks(at_once) {
                let measured = thread::scope(|scope| {
                    let start = |(case, ..): &'_ (Case, _, _)| {
                        let (program, case) = (&program, case.clone());
                        scope.spawn(move || measure(program, &case))
                    };
                    let running: Vec<_> = together.iter().map(start).collect();
                    let ended = running.into_iter().map(ScopedJoinHandle::join);
                    ended.collect::<Result<Vec<_>, _>>()
                });
                let measured = measured.map_err(|_| "a run ended before its time")?;
                for ((case, scenario, simulated), measured) in together.iter().zip(measured) {
                    let measured = measured?;
                    let comparisons = compare(scenario, simulated, &measured);
                    println!("{}", table(&case.policy, &comparisons, &measured));
                    runs += 1;
                    disturbed += u32::from(measured.disturbed());
                }
            }
        }
        if disturbed > 0 {
            println!(
                "DISTURBED: the machine was too busy during {disturbed} of {runs} runs, so their \
                 numbers say nothing. Play them again while it has nothing else to do."
            );
        }
        Ok(())
    }
}
