//! What is made up for when the store comes back.

use std::time::Duration;

use relent::retry;
use relent_core::Instant as StoreTime;
use relent_core::claim::{ClaimConfig, Lease, Takeover};
use tokio::time::{Instant, sleep, timeout};

use super::lease::HeldLease;
use super::server::Server;
use super::store_call::{CALL, CallError, STORE, WriteFailed, in_time};
use crate::store::{Change, Claimed, Key, Store, WriteError};

/// A claim that is given back is looked for again after this time, and then after four times as long each time.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// But never less often than this.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// By then the store has executed each claim that was on its way, or executes it no more.
const SETTLED: Duration = Duration::from_secs(20);
/// A store that is away for longer is not waited for: then the outcome is unknown if the claim was made.
const GONE: Duration = Duration::from_secs(3600);

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
        let claim = || {
            let claim = self.store.claim(key, owner, held.fingerprint, &config);
            in_time(CALL, claim)
        };
        match retry(&STORE, claim).await {
            Ok(Claimed::Run { lease, .. }) => held.set(lease),
            Ok(_) => return Err(WriteError::Lost),
            Err(gave_up) => {
                self.store_failed("claim", key, &gave_up);
                return Err(WriteError::Store(Box::new(gave_up)));
            }
        }
        match held.step() {
            0 => Ok(()),
            // For whoever resumes.
            step => self.write(key, &held.get(), Change::Checkpoint(step)).await,
        }
    }

    /// A claim that was not answered in time may have been made all the same, for a request that was refused and has not
    /// run: it is given back, so that the next one runs. Several times, since it may have been sent more than once, and may
    /// still be on its way.
    pub(super) async fn give_back(self, key: Key, owner: u128) {
        // Beyond that the lease runs out, and the outcome is unknown.
        let Ok(_place) = self.common.abandoned.try_acquire() else {
            return;
        };
        let lease = Lease {
            owner,
            fence: 0,
            until: StoreTime::ORIGIN,
        };
        let config = &self.settings.claim;
        let (since, mut pause) = (Instant::now(), LOOK_AGAIN);
        loop {
            let given_back = {
                // They do not keep others from a store that has just come back.
                let Ok(_turn) = self.common.give_backs.acquire().await else {
                    return;
                };
                let given_back = self.store.write(&key, &lease, Change::GiveBack, config);
                timeout(CALL, given_back).await
            };
            match given_back {
                Ok(Err(WriteError::Store(error))) if since.elapsed() >= GONE => {
                    self.store_failed("give_back", &key, &error);
                    return;
                }
                Err(_) if since.elapsed() >= GONE => {
                    let error = CallError::<S::Error>::TimedOut(CALL);
                    self.store_failed("give_back", &key, &error);
                    return;
                }
                Ok(Err(WriteError::Store(_))) | Err(_) => {}
                _ if since.elapsed() >= SETTLED => return,
                _ => {}
            }
            sleep(pause).await;
            pause = (4 * pause).min(LOOK_EVERY);
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
