//! What is made up for when the store comes back.

use std::time::Duration;

use relent::{Backoff, Policy, retry};
use relent_core::claim::{ClaimConfig, Fingerprint, Takeover};

use super::lease::HeldLease;
use super::running::WriteFailed;
use super::service::{STORE, Server};
use crate::store::{Change, Claimed, Key, Store, WriteError};

/// While the store is away many claims are to be given back: each asks seldom.
static GIVE_BACK: Policy = Policy::builder(Backoff::exponential(Duration::from_secs(1)))
    .max_delay(Duration::from_secs(10))
    .max_retries(4)
    .build_const();

impl<S: Store> Server<S> {
    /// Writes into the record of an execution, also if the store has forgotten its claim and nobody has taken the
    /// key since: else a duplicate would run.
    pub(super) async fn write_held(
        &self,
        held: &HeldLease,
        change: Change,
    ) -> Result<(), WriteFailed> {
        match self.write(&held.key, &held.get(), change.clone()).await {
            Err(WriteError::Gone) => {}
            written => return written,
        }
        let change = match change {
            // What has had no effect may run again as it is.
            Change::Release if !held.may_have_had_effect() => return Ok(()),
            // The record would tell what was done before, and there is none.
            Change::Release => Change::GiveUp,
            change => change,
        };
        self.claim_again(held).await?;
        self.write(&held.key, &held.get(), change).await
    }

    /// Claims the key of an execution that the store has forgotten, unless another has it by now.
    pub(super) async fn claim_again(&self, held: &HeldLease) -> Result<(), WriteFailed> {
        let config = self.takes_from_nobody();
        let (owner, key) = (held.get().owner, &held.key);
        let claim = || self.store.claim(key, owner, held.fingerprint, &config);
        match retry(&STORE, claim).await {
            Ok(Claimed::Run { lease, .. }) => held.set(lease),
            Ok(_) => return Err(WriteError::Lost),
            Err(gave_up) => return Err(WriteError::Store(Box::new(gave_up))),
        }
        match held.step() {
            0 => Ok(()),
            // For whoever resumes.
            step => self.write(key, &held.get(), Change::Checkpoint(step)).await,
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
