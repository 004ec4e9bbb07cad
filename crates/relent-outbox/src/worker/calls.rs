//! Store calls of the event loop, each in a task of its own and with a time limit.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use tokio::task::{Id, JoinSet};
use tokio::time::timeout;

use crate::store::{Claims, EndpointWork, OwnedEndpoint};

/// The kind of a store call. At most one of each kind runs at a time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum StoreCall {
    Find,
    Acquire,
    Claim,
    Settle,
    Release,
}

impl StoreCall {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Find => "find",
            Self::Acquire => "acquire",
            Self::Claim => "claim",
            Self::Settle => "settle",
            Self::Release => "release",
        }
    }
}

/// The result of a store call.
#[derive(Debug)]
pub(super) enum CallResult {
    Found(Vec<EndpointWork>),
    Acquired(Vec<OwnedEndpoint>),
    Claimed(Claims),
    Settled(Vec<bool>),
    Released,
}

/// The running store calls.
#[derive(Debug, Default)]
pub(super) struct Calls {
    tasks: JoinSet<Result<CallResult, String>>,
    kinds: HashMap<Id, StoreCall>,
}

impl Calls {
    pub(super) fn is_busy(&self, kind: StoreCall) -> bool {
        self.kinds.values().any(|busy| *busy == kind)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Starts a call, which fails if it takes longer than `longest`.
    pub(super) fn begin<E: std::fmt::Display>(
        &mut self,
        kind: StoreCall,
        longest: Duration,
        call: impl Future<Output = Result<CallResult, E>> + Send + 'static,
    ) {
        let task = self.tasks.spawn(async move {
            match timeout(longest, call).await {
                Ok(Ok(done)) => Ok(done),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("the store does not answer".to_owned()),
            }
        });
        self.kinds.insert(task.id(), kind);
    }

    /// Returns the next finished call. Waits for ever if none runs.
    pub(super) async fn next(&mut self) -> (StoreCall, Result<CallResult, String>) {
        loop {
            let (id, result) = match self.tasks.join_next_with_id().await {
                Some(Ok((id, result))) => (id, result),
                Some(Err(error)) => (error.id(), Err("the store has panicked".to_owned())),
                None => std::future::pending().await,
            };
            if let Some(kind) = self.kinds.remove(&id) {
                return (kind, result);
            }
        }
    }
}
