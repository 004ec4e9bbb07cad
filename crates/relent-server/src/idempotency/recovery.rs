//! Recovery after a failure of the store.

use std::time::Duration;

use relent::retry;
use relent_core::Instant as StoreTime;
use relent_core::idempotency::{ClaimConfig, Lease, Takeover};
use tokio::time::{Instant, sleep, timeout};

use super::lease::HeldLease;
use super::server::Server;
use super::store_call::{CALL_RETRIES, CALL_TIMEOUT, CallError, WriteFailed, in_time};
use crate::store::{Change, Claimed, Key, Store, WriteError};

/// The first pause between attempts to give a claim back; each further pause is four times as long.
const FIRST_GIVE_BACK_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause between attempts.
const MAX_GIVE_BACK_PAUSE: Duration = Duration::from_secs(10);
/// After this time the store has executed every claim in transit, or never will.
const CLAIMS_SETTLED_AFTER: Duration = Duration::from_secs(20);
/// Attempts stop if the store fails for this long. If the claim was made, its outcome becomes unknown.
const GIVE_BACK_TIMEOUT: Duration = Duration::from_secs(3600);

impl<S: Store> Server<S> {
    /// Writes into the record of an execution. If the store has lost the record and the key is free, claims the key
    /// again first: otherwise a duplicate would run.
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
            // The request had no effect, so it may run again.
            Change::Release if !held.may_have_had_effect() => return Ok(()),
            // The record of earlier effects is lost, so the outcome is unknown.
            Change::Release => Change::GiveUp,
            change => change,
        };
        self.claim_again(held).await?;
        self.write(&held.key, &held.get(), change).await
    }

    /// Claims the key of an execution whose record the store has lost, unless another execution has it.
    pub(super) async fn claim_again(&self, held: &HeldLease) -> Result<(), WriteFailed> {
        let config = self.without_takeover();
        let (owner, key) = (held.get().owner, &held.key);
        let claim = || {
            let claim = self.store.claim(key, owner, held.fingerprint, &config);
            in_time(CALL_TIMEOUT, claim)
        };
        match retry(&CALL_RETRIES, claim).await {
            Ok(Claimed::Run { lease, .. }) => held.set(lease),
            Ok(_) => return Err(WriteError::Lost),
            Err(gave_up) => {
                self.store_failed("claim", key, &gave_up);
                return Err(WriteError::Store(Box::new(gave_up)));
            }
        }
        match held.step() {
            0 => Ok(()),
            // Needed if a later execution resumes.
            step => self.write(key, &held.get(), Change::Checkpoint(step)).await,
        }
    }

    /// Gives back a claim that may have been made although its response did not come in time, or whose release has
    /// failed. Its request had no effect, so the next one has to run. It tries several times, since claims may be in
    /// transit.
    pub(super) async fn give_back(self, key: Key, owner: u128) {
        // Beyond the limit the lease expires, and the outcome is unknown.
        let Ok(_place) = self.common.abandoned.try_acquire() else {
            return;
        };
        let lease = Lease {
            owner,
            fence: 0,
            until: StoreTime::ORIGIN,
        };
        let config = &self.settings.claim;
        let (since, mut pause) = (Instant::now(), FIRST_GIVE_BACK_PAUSE);
        loop {
            let given_back = {
                // Limits the load on a store that has just recovered.
                let Ok(_permit) = self.common.give_backs.acquire().await else {
                    return;
                };
                let given_back = self.store.write(&key, &lease, Change::GiveBack, config);
                timeout(CALL_TIMEOUT, given_back).await
            };
            match given_back {
                Ok(Err(WriteError::Store(error))) if since.elapsed() >= GIVE_BACK_TIMEOUT => {
                    self.store_failed("give_back", &key, &error);
                    return;
                }
                Err(_) if since.elapsed() >= GIVE_BACK_TIMEOUT => {
                    let error = CallError::<S::Error>::TimedOut(CALL_TIMEOUT);
                    self.store_failed("give_back", &key, &error);
                    return;
                }
                Ok(Err(WriteError::Store(_))) | Err(_) => {}
                _ if since.elapsed() >= CLAIMS_SETTLED_AFTER => return,
                _ => {}
            }
            sleep(pause).await;
            pause = (4 * pause).min(MAX_GIVE_BACK_PAUSE);
        }
    }

    /// The claim configuration without takeover.
    fn without_takeover(&self) -> ClaimConfig {
        ClaimConfig {
            takeover: Takeover::Refuse,
            ..self.settings.claim
        }
    }
}
