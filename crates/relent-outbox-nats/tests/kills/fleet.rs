//! A nats-server and NATS workers that make the attempts of a dispatcher. Each of these processes may be killed.

use std::future::pending;
use std::process::Child;

use relent_outbox_nats::{NatsWorker, NatsWorkerConfig, Queue, QueueName, async_nats};

use crate::killed::{Others, spawn};
use crate::servers;
use crate::support::local_sender;

/// Instead of a database: the process is a NATS worker.
const DELIVERER: &str = "deliverer";

pub(crate) struct NatsFleet {
    /// `None` while the server restarts.
    nats: Option<servers::Nats>,
    url: String,
    deliverers: Vec<Child>,
}

impl NatsFleet {
    /// Starts this number of NATS workers; `None` if nats-server is not installed.
    pub(crate) fn new(deliverers: usize) -> Option<Self> {
        let nats = servers::nats()?;
        let mut fleet = Self {
            url: nats.url(),
            nats: Some(nats),
            deliverers: Vec::new(),
        };
        for _ in 0..deliverers {
            fleet.add();
        }
        Some(fleet)
    }

    pub(crate) fn add(&mut self) {
        let deliverer = spawn(&self.relay(DELIVERER), None);
        self.deliverers.push(deliverer);
    }

    /// The argument of a process that dispatches to this fleet.
    pub(crate) fn relay(&self, database: &str) -> String {
        format!("{} {database}", self.url)
    }

    pub(crate) fn kill(&mut self, place: usize) {
        self.deliverers[place].kill().unwrap();
    }
}

impl Others for NatsFleet {
    fn processes(&self) -> Vec<u32> {
        let nats = self.nats.as_ref().unwrap().server.id();
        let deliverers = self.deliverers.iter().map(Child::id);
        deliverers.chain([nats]).collect()
    }

    async fn replace(&mut self, place: usize) {
        let argument = self.relay(DELIVERER);
        if let Some(killed) = self.deliverers.get_mut(place) {
            killed.wait().unwrap();
            *killed = spawn(&argument, None);
        } else {
            self.nats = self.nats.take().map(servers::Nats::restart);
        }
    }
}

impl Drop for NatsFleet {
    fn drop(&mut self) {
        for deliverer in &mut self.deliverers {
            drop(deliverer.kill());
            drop(deliverer.wait());
        }
    }
}

/// The queue at this server.
pub(crate) async fn queue(url: &str) -> Queue {
    let options = async_nats::ConnectOptions::new().retry_on_initial_connect();
    let client = options.connect(url).await.unwrap();
    Queue::new(client, QueueName::default())
}

/// Makes attempts until the process is killed.
pub(crate) async fn deliver(url: &str) {
    let deliverer = NatsWorker::new(
        queue(url).await,
        local_sender(),
        NatsWorkerConfig::default(),
    );
    deliverer.run(pending()).await;
}
