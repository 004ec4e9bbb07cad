//! What is made up for when the store comes back.

use std::error::Error;
use std::time::Duration;

use relent::{Backoff, Policy, retry};
use relent_core::claim::{ClaimConfig, Fingerprint, Takeover};

use super::service::{STORE, Server};
use crate::store::{Change, Claimed, Key, Store, WriteError};

/// While the store is away many claims are to be given back: each asks seldom.
static GIVE_BACK: Policy = Policy::builder(Backoff::exponential(Duration::from_secs(1)))
    .max_delay(Duration::from_secs(10))
    .max_retries(4)
    .build_const();

impl<S: Store> Server<S> {
    /// Records the end of an execution whose claim the store has forgotten, its answer or that its outcome is
    /// unknown, if nobody has taken the key: else a duplicate would run.
    pub(super) async fn put_back(
        &self,
        key: &Key,
        owner: u128,
        fingerprint: Fingerprint,
        end: Change,
    ) -> Result<(), WriteError<Box<dyn Error + Send + Sync>>> {
        let config = self.takes_from_nobody();
        let claim = || self.store.claim(key, owner, fingerprint, &config);
        match retry(&STORE, claim).await {
            Ok(Claimed::Run { lease, .. }) => self.write(key, &lease, end).await,
            Ok(_) => Err(WriteError::Lost),
            Err(gave_up) => Err(WriteError::Store(Box::new(gave_up))),
        }
    }

    /// A claim that was not answered may have been made all the same, for a request that was refused and has not run:
    /// it is given back, so that the next one runs.
    pub(super) async fn give_back(self, key: Key, owner: u128, fingerprint: Fingerprint) {
        // Beyond that the lease runs out, and the outcome is unknown.
        let Ok(_permit) = self.common.give_backs.try_acquire() else {
            return;
        };
        let config = self.takes_from_nobody();
        let claim = || self.store.claim(&key, owner, fingerprint, &config);
        if let Ok(Claimed::Run { lease, .. }) = retry(&GIVE_BACK, claim).await {
            drop(self.write(&key, &lease, Change::Release).await);
        }
    }

    /// Whoever runs, or was lost, keeps its key.
    fn takes_from_nobody(&self) -> ClaimConfig {
        ClaimConfig {
            takeover: Takeover::Refuse,
            ..self.settings.claim
        }
    }
}
