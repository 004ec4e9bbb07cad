//! Tests that the conformance suite detects faults of published implementations, one by one, in an otherwise correct
//! store.

use std::collections::HashMap;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::HeaderMap;
use relent_core::Instant;
use relent_core::idempotency::{Claim, ClaimConfig, ClaimStage, Fingerprint, Lease, Record};
use relent_server::store::{
    Change, Claimed, Key, Resolution, ResolveError, Store, StoredResponse, UnknownOutcome,
    WriteError, conformance,
};
use tokio::time::Instant as Now;

/// The fault of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// Reads, and runs a request without a response (axum-idempotent).
    NoClaim,
    /// Reads, and then claims: another request may come in between.
    LooksFirst,
    /// Writes the end of an execution without comparing the owner (Svix, idempotent-proxy).
    NoOwnerCheck,
    /// Does not compare the fencing token.
    NoFence,
    /// A claim lasts as long as a record (idempotent-proxy, actor-ts).
    LeaseIsKeep,
    /// An expired lease is taken over: the handler runs again.
    TakesOver,
    /// Replays the response to any request with the key (axum-idempotent, Worldline).
    NoFingerprint,
    /// Reports a running request to a different request with its key.
    FingerprintLast,
    /// Stores header fields in a map (Svix).
    FieldsInMap,
    /// Stores the response without its body, as after a read error (Svix).
    EmptyBody,
    /// Replays every status as 200 (fullstackhero).
    StatusIsLost,
    /// A client that repeats its claim after a timeout of the store is rejected by its own record.
    ForgetsOwner,
    /// A released request cannot run again.
    KeepsReleased,
    /// Gives a claim back by its fencing token, which its process does not know.
    GivesBackByFence,
    /// Gives a claim back without comparing its owner.
    GivesBackAnything,
    /// Repeating the same end is an error.
    EndsOnce,
    /// A takeover loses the completed steps.
    ForgetsSteps,
    /// An expired record still exists.
    NeverExpires,
    /// Lists running requests among unknown outcomes.
    FindsRunning,
    /// Does not list an outcome whose lease has expired, unless it is marked as unknown.
    FindsOnlyEnded,
    /// Resolves a record in any state.
    ResolvesAnything,
    /// The former owner of a resolved outcome may still write.
    ResolvesUnfenced,
    /// A resolution with a shorter retention shortens the life of the record.
    ResolvesBriefly,
    /// The age of an outcome is computed from the retention of its reader.
    AgesByRetention,
}

const FAULTS: [Fault; 24] = [
    Fault::NoClaim,
    Fault::LooksFirst,
    Fault::NoOwnerCheck,
    Fault::NoFence,
    Fault::LeaseIsKeep,
    Fault::TakesOver,
    Fault::NoFingerprint,
    Fault::FingerprintLast,
    Fault::FieldsInMap,
    Fault::EmptyBody,
    Fault::StatusIsLost,
    Fault::ForgetsOwner,
    Fault::KeepsReleased,
    Fault::GivesBackByFence,
    Fault::GivesBackAnything,
    Fault::EndsOnce,
    Fault::ForgetsSteps,
    Fault::NeverExpires,
    Fault::FindsRunning,
    Fault::FindsOnlyEnded,
    Fault::ResolvesAnything,
    Fault::ResolvesUnfenced,
    Fault::ResolvesBriefly,
    Fault::AgesByRetention,
];

type Stored = (Record, Option<Arc<StoredResponse>>);

struct Wrong {
    fault: Fault,
    began: Now,
    records: Mutex<HashMap<Key, Stored>>,
}

impl Wrong {
    fn new(fault: Fault) -> Self {
        Self {
            fault,
            began: Now::now(),
            records: Mutex::default(),
        }
    }

    fn now(&self) -> Instant {
        Instant::ORIGIN.saturating_add(self.began.elapsed())
    }

    /// Returns the response as the faulty store keeps it.
    fn kept(&self, answer: &StoredResponse) -> StoredResponse {
        let mut kept = answer.clone();
        match self.fault {
            Fault::FieldsInMap => {
                let fields: HashMap<_, _> = (answer.headers.iter())
                    .map(|(name, value)| (name.clone(), value.clone()))
                    .collect();
                kept.headers = HeaderMap::from_iter(fields);
            }
            Fault::EmptyBody => kept.body = Some(Bytes::new()),
            Fault::StatusIsLost => kept.status = http::StatusCode::OK,
            _ => {}
        }
        kept
    }
}

impl Store for Wrong {
    type Error = Infallible;

    async fn claim(
        &self,
        key: &Key,
        owner: u128,
        fingerprint: Fingerprint,
        config: &ClaimConfig,
    ) -> Result<Claimed, Infallible> {
        let (now, mut config) = (self.now(), *config);
        let seen = self.records.lock().unwrap().get(key).cloned();
        if self.fault == Fault::LooksFirst {
            tokio::task::yield_now().await;
        }
        let (mut record, answer) =
            seen.map_or((None, None), |(record, answer)| (Some(record), answer));
        let mut print = fingerprint;
        if let Some(record) = &mut record {
            match (self.fault, record.stage) {
                (Fault::NoFingerprint, ClaimStage::Completed) => print = record.fingerprint,
                (Fault::FingerprintLast, ClaimStage::Running { .. }) => print = record.fingerprint,
                (Fault::NoClaim, ClaimStage::Running { .. }) => record.stage = ClaimStage::Released,
                (Fault::KeepsReleased, ClaimStage::Released) => {
                    record.stage = ClaimStage::Unknown { since: now };
                }
                (Fault::ForgetsOwner, _) => record.owner = record.owner.wrapping_add(1),
                (Fault::ForgetsSteps, _) => record.step = 0,
                (Fault::NeverExpires, _) => record.expires = Instant::MAX,
                _ => {}
            }
        }
        match self.fault {
            Fault::LeaseIsKeep => config.lease = config.retention,
            Fault::TakesOver => config.takeover = relent_core::idempotency::Takeover::Rerun,
            _ => {}
        }
        let (claim, change) = Record::claim(record.as_ref(), now, &config, owner, print);
        if let Some(record) = change {
            self.records.lock().unwrap().insert(*key, (record, None));
        }
        let answer = match claim {
            Claim::Replay => answer.as_deref().cloned(),
            _ => None,
        };
        Ok(Claimed::of(claim, now, answer).unwrap())
    }

    async fn write(
        &self,
        key: &Key,
        lease: &Lease,
        change: Change,
        config: &ClaimConfig,
    ) -> Result<Lease, WriteError<Infallible>> {
        let now = self.now();
        let mut records = self.records.lock().unwrap();
        let (record, _) = records.get(key).ok_or(WriteError::Lost)?;
        let mut own = *lease;
        match self.fault {
            Fault::NoOwnerCheck => (own.owner, own.fence) = (record.owner, record.fence),
            Fault::NoFence if own.owner == record.owner => own.fence = record.fence,
            Fault::GivesBackAnything if matches!(change, Change::GiveBack) => {
                own.owner = record.owner;
            }
            Fault::GivesBackByFence
                if matches!(change, Change::GiveBack) && own.fence != record.fence =>
            {
                return Err(WriteError::Lost);
            }
            Fault::EndsOnce if record.stage == ClaimStage::Completed => {
                return Err(WriteError::Lost);
            }
            _ => {}
        }
        let (record, own) = change.make(record, now, &own, config)?;
        let answer = match &change {
            Change::Complete(answer) => Some(Arc::new(self.kept(answer))),
            _ => None,
        };
        records.insert(*key, (record, answer));
        Ok(own)
    }

    async fn find_unknown(
        &self,
        after: Option<&UnknownOutcome>,
        most: usize,
        config: &ClaimConfig,
    ) -> Result<Vec<UnknownOutcome>, Infallible> {
        let now = self.now();
        let place = |outcome: &UnknownOutcome| (outcome.record().expires, *outcome.key());
        let records = self.records.lock().unwrap();
        let found = records.iter().filter_map(|(key, (record, _))| {
            let mut record = *record;
            match (self.fault, record.stage) {
                (Fault::FindsRunning, ClaimStage::Running { .. }) => {
                    record.stage = ClaimStage::Unknown { since: now };
                }
                (Fault::FindsOnlyEnded, ClaimStage::Running { .. }) => return None,
                (Fault::AgesByRetention, ClaimStage::Unknown { since }) => {
                    let age = now.saturating_add(config.retention);
                    let age = age.saturating_since(record.expires).as_nanos() as u64;
                    let since = since.min(Instant::from_nanos(now.as_nanos().saturating_sub(age)));
                    record.stage = ClaimStage::Unknown { since };
                }
                _ => {}
            }
            UnknownOutcome::of(*key, record, now)
        });
        let follows =
            |found: &UnknownOutcome| after.is_none_or(|after| place(after) < place(found));
        let mut found: Vec<_> = found.filter(follows).collect();
        found.sort_by_key(place);
        found.truncate(most);
        Ok(found)
    }

    async fn resolve(
        &self,
        found: &UnknownOutcome,
        resolution: Resolution,
        config: &ClaimConfig,
    ) -> Result<(), ResolveError<Infallible>> {
        let now = self.now();
        let mut records = self.records.lock().unwrap();
        let mut stored = records.get(found.key()).map(|(record, _)| *record);
        if self.fault == Fault::ResolvesAnything && stored.is_some() {
            stored = Some(*found.record());
        }
        let mut record = resolution.make(stored.as_ref(), now, found, config)?;
        if self.fault == Fault::ResolvesUnfenced {
            (record.owner, record.fence) = (found.record().owner, found.record().fence);
        }
        if self.fault == Fault::ResolvesBriefly {
            record.expires = now.saturating_add(config.retention);
        }
        let answer = match &resolution {
            Resolution::Applied(answer) => Some(Arc::new(self.kept(answer))),
            Resolution::NotApplied => None,
        };
        records.insert(*found.key(), (record, answer));
        Ok(())
    }

    async fn remove_expired(&self, _: usize) -> Result<usize, Infallible> {
        Ok(0)
    }
}

/// Returns whether the suite passes the store, by its own clock and by a set one.
async fn passes(fault: Fault) -> bool {
    let check = async {
        conformance::check(|| Wrong::new(fault), 2000, 1).await;
        let store = Wrong::new(fault);
        let set = async |now: Instant| {
            let now = store.began + now.saturating_since(Instant::ORIGIN);
            tokio::time::advance(now - Now::now()).await;
        };
        conformance::check_in_time(&store, set, Instant::ORIGIN, 4000, 1).await;
    };
    AssertUnwindSafe(check).catch_unwind().await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn the_conformance_suite_passes_a_correct_store_and_finds_each_fault() {
    // Without a fault the suite passes.
    assert!(passes(Fault::None).await);
    tokio::time::advance(Duration::from_secs(1)).await;
    let mut passed = Vec::new();
    for fault in FAULTS {
        if passes(fault).await {
            passed.push(fault);
        }
    }
    assert!(passed.is_empty(), "the suite does not find {passed:?}");
}
