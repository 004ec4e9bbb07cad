//! A client process: its share of the clients, with one for each of the scenario's processes.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use relent::failure::Cause;
use relent::{Policy, Summary};
use relent_reqwest::{Client, default_builder};
use relent_sim::{Request, RequestOutcome, Scenario, requests};
use tokio::task::{JoinSet, LocalSet};

use crate::clock::{Start, Watch};
use crate::server::say;
use crate::stdin;
use crate::wire::Message;

/// The share of the clients that a process runs.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Share {
    /// The number of this process, from 0
    #[arg(long)]
    pub part: u32,

    /// The number of client processes
    #[arg(long)]
    pub parts: u32,
}

/// Makes its requests when they are due, and then reports their outcomes. Ends immediately when its standard input is
/// closed. Each request blocks the event loop for the duration `blocked`.
///
/// # Errors
/// No client can be created, or the output cannot be written.
pub async fn ask(
    scenario: &Scenario,
    policy: Policy,
    seed: u64,
    share: Share,
    blocked: Duration,
    address: &str,
) -> Result<(), Box<dyn Error>> {
    // Proxies of the environment do not apply on this machine.
    let http = default_builder().no_proxy().build()?;
    let policy = Arc::new(policy);
    let own = (0..).zip(requests(scenario, seed).unwrap_or_default());
    let own: Vec<(u64, Request)> = own
        .filter(|(_, request)| request.process % share.parts.max(1) == share.part)
        .collect();
    let mut clients: HashMap<u32, Client> = HashMap::new();
    for (_, request) in &own {
        let client = || {
            Client::from_client(http.clone(), Arc::clone(&policy))
                .redirects_are_tracked()
                .cross_layer()
                .traced()
        };
        clients.entry(request.process).or_insert_with(client);
    }
    say([Message::Ready(String::new())])?;
    let mut told = stdin::lines();
    let Some(wall) = stdin::start(&mut told).await else {
        return Ok(());
    };
    let start = Start::at(wall);
    let crowd = ClientProcess {
        start,
        blocked,
        address: address.to_owned(),
        repeatable: scenario.clients.repeatable,
        said: RefCell::default(),
        odd: RefCell::default(),
    };
    let crowd = Rc::new(crowd);
    let mut watch = Watch::new(start.late());
    let local = LocalSet::new();
    let done = local.run_until(async {
        tokio::select! {
            () = crowd.ask_all(&own, &clients) => true,
            () = watch.watch() => false,
            _ = told.recv() => false,
        }
    });
    if !done.await {
        return Ok(());
    }
    let odd = crowd.odd.take().into_iter();
    let odd = odd.map(|(what, count)| Message::Odd(count, what.to_owned()));
    let outcomes = crowd.said.take().into_iter();
    let outcomes = outcomes.map(|(name, outcome)| Message::Request(name, outcome));
    let (late, used) = watch.end();
    let rest = odd.chain([Message::Late(late), Message::Used(used), Message::End]);
    Ok(say(outcomes.chain(rest))?)
}

struct ClientProcess {
    start: Start,
    blocked: Duration,
    address: String,
    repeatable: bool,
    said: RefCell<Vec<(u64, RequestOutcome)>>,
    /// Attempts that ended in a way that the simulator does not have.
    odd: RefCell<BTreeMap<&'static str, u64>>,
}

impl ClientProcess {
    async fn ask_all(self: &Rc<Self>, own: &[(u64, Request)], clients: &HashMap<u32, Client>) {
        let mut asking = JoinSet::new();
        for (name, request) in own {
            tokio::time::sleep_until(self.start.instant(request.at)).await;
            if let Some(client) = clients.get(&request.process) {
                let (crowd, client) = (Rc::clone(self), client.clone());
                asking.spawn_local(crowd.ask(client, *name, *request));
            }
        }
        while asking.join_next().await.is_some() {}
    }

    /// Makes a request: `name` is its key at the limiter.
    async fn ask(self: Rc<Self>, client: Client, name: u64, request: Request) {
        if !self.blocked.is_zero() {
            thread::sleep(self.blocked);
        }
        let url = format!("http://{}/{name}", self.address);
        let sent = match self.repeatable {
            true => client.get(url).send(),
            false => client.post(url).send(),
        };
        let (succeeded, attempts) = match sent.await {
            Ok(response) => (
                response.status().is_success(),
                self.account(response.summary()),
            ),
            Err(error) => (
                false,
                error.summary().map_or(0, |summary| self.account(summary)),
            ),
        };
        let outcome = RequestOutcome {
            request,
            attempts,
            ended: self.start.now(),
            succeeded,
        };
        self.said.borrow_mut().push((name, outcome));
    }

    /// The number of attempts; records network failures.
    fn account(&self, summary: &Summary) -> u32 {
        let entries = summary.trace.iter().flat_map(relent::trace::Trace::entries);
        for entry in entries {
            if let Some(Cause::Network(what)) = entry.failure.map(|failure| failure.cause) {
                *self.odd.borrow_mut().entry(what.name()).or_default() += 1;
            }
        }
        summary.attempts
    }
}
