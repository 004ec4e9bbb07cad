//! Records in the memory of one process.

use std::collections::{BTreeSet, HashMap};
use std::error::Error;
use std::fmt;
use std::future::ready;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use relent_core::Instant;
use relent_core::idempotency::{ClaimConfig, ClaimStage, Fingerprint, Lease, Record};

use super::answer::StoredResponse;
use super::{Change, Claimed, Key, Resolution, ResolveError, Store, UnknownOutcome, WriteError};

/// A store in the memory of this process, for tests and for single-process services whose effects are also lost at a
/// restart.
///
/// Each claim removes two expired records, so the store holds about the records of one [`ClaimConfig::retention`]. It
/// never holds more than [`at_most`](Self::at_most) records, or responses of more than
/// [`at_most_bytes`](Self::at_most_bytes).
///
/// # When the store is full
/// Each [principal](Key::principal) may hold half of what the others leave. So a single principal gets half of the
/// store, and the first key of another principal always finds a place.
///
/// A new key beyond the share replaces the oldest rejection of the same principal. A rejection is a request without
/// effect, or one with a 4xx response (for gRPC an equivalent status). A duplicate of a replaced request runs again.
/// If the principal has none, the oldest rejection of a principal with more records is replaced. A request that runs,
/// has an unknown outcome, or has any other response is never forgotten before it expires. If nothing can be
/// replaced, the claim returns [`Full`], and the layer rejects the request with 503.
///
/// If the bytes of a response do not fit, it is stored without its body, or also without its header fields. Its
/// duplicates get 410, and nothing runs again.
#[derive(Debug)]
pub struct Memory {
    began: tokio::time::Instant,
    most: usize,
    most_bytes: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    records: HashMap<Key, Entry>,
    by_expiry: BTreeSet<Place>,
    /// Records that may be forgotten for others.
    refusals: BTreeSet<Place>,
    shares: HashMap<Principal, Share>,
    bytes: usize,
}

/// The sort key of records: their expiry, then their key.
type Place = (Instant, Key);
type Principal = [u8; 8];

#[derive(Debug)]
struct Entry {
    record: Record,
    answer: Option<Arc<StoredResponse>>,
    /// The length of the response.
    bytes: usize,
}

/// The share of one principal.
#[derive(Debug, Default)]
struct Share {
    records: usize,
    bytes: usize,
    refusals: BTreeSet<Place>,
}

/// How many refusals are checked for one that may be forgotten.
const MAX_REFUSALS_CHECKED: usize = 8;
/// The most refusals that are forgotten for one response.
const MAX_FORGOTTEN_PER_RESPONSE: usize = 16;
/// How many expired records are removed when there is no place.
const EXPIRED_BATCH: usize = 64;

/// The principal has reached its share of records, and none of them may be forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full {
    own: usize,
    most: usize,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the memory for idempotency keys has no place left for a principal that has {} records of at most {}: raise \
             `at_most`, keep them for less time, or take a store on disk",
            self.own, self.most
        )
    }
}

impl Error for Full {}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// Creates a store for at most 200,000 records and 128 MiB of responses.
    #[must_use]
    pub fn new() -> Self {
        Self {
            began: tokio::time::Instant::now(),
            most: 200_000,
            most_bytes: 128 << 20,
            kept: Mutex::default(),
        }
    }

    /// Sets the number of records, at about 400 bytes each plus responses: 200,000 by default. One principal holds at
    /// most half of them.
    #[must_use]
    pub fn at_most(self, records: usize) -> Self {
        Self {
            most: records,
            ..self
        }
    }

    /// Sets the total length of stored responses in bytes, with body and header fields: 128 MiB by default. One
    /// principal holds at most half of it.
    #[must_use]
    pub fn at_most_bytes(self, bytes: usize) -> Self {
        Self {
            most_bytes: bytes,
            ..self
        }
    }

    /// Returns the number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().records.len()
    }

    /// Returns whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the total length of stored responses in bytes, with body and header fields.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Instant {
        Instant::ORIGIN.saturating_add(self.began.elapsed())
    }

    fn claim_now(
        &self,
        key: &Key,
        owner: u128,
        fingerprint: Fingerprint,
        config: &ClaimConfig,
    ) -> Result<Claimed, Full> {
        let mut kept = self.lock();
        let now = self.now();
        kept.remove_expired(now, 2);
        if !kept.records.contains_key(key) {
            kept.make_room(now, key.principal(), self.most)?;
        }
        let stored = kept.records.get(key);
        let record = stored.map(|stored| &stored.record);
        let (claim, change) = Record::claim(record, now, config, owner, fingerprint);
        let answer = stored.and_then(|stored| stored.answer.as_deref().cloned());
        if let Some(record) = change {
            kept.put(*key, record, None);
        }
        // A response is always stored together with its record.
        Ok(Claimed::of(claim, now, answer).unwrap_or(Claimed::Unknown))
    }

    fn write_now(
        &self,
        key: &Key,
        lease: &Lease,
        change: Change,
        config: &ClaimConfig,
    ) -> Result<Lease, WriteError<Full>> {
        let mut kept = self.lock();
        let now = self.now();
        let stored = kept.records.get(key).map(|stored| &stored.record);
        let record = stored
            .filter(|record| !record.is_expired(now))
            .ok_or(WriteError::Gone)?;
        let (record, lease) = change.make(record, now, lease, config)?;
        let answer = match change {
            Change::Complete(answer) => Some(kept.fit_response(key, answer, self.most_bytes)),
            _ => None,
        };
        kept.put(*key, record, answer);
        Ok(lease)
    }

    fn find_unknown_now(&self, after: Option<&UnknownOutcome>, most: usize) -> Vec<UnknownOutcome> {
        let kept = self.lock();
        let now = self.now();
        let after = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.place()));
        let keys = kept.by_expiry.range((after, Bound::Unbounded));
        let found = keys.filter_map(|(_, key)| {
            let stored = kept.records.get(key)?;
            UnknownOutcome::of(*key, stored.record, now)
        });
        found.take(most).collect()
    }

    fn resolve_now(
        &self,
        found: &UnknownOutcome,
        resolution: &Resolution,
        config: &ClaimConfig,
    ) -> Result<(), ResolveError<Full>> {
        let mut kept = self.lock();
        let stored = kept.records.get(found.key()).map(|stored| &stored.record);
        let record = resolution.make(stored, self.now(), found, config)?;
        let answer = resolution.answer().cloned();
        let answer = answer.map(|answer| kept.fit_response(found.key(), answer, self.most_bytes));
        kept.put(*found.key(), record, answer);
        Ok(())
    }
}

impl Kept {
    fn put(&mut self, key: Key, record: Record, answer: Option<Arc<StoredResponse>>) {
        self.remove(&key);
        let place = (record.expires, key);
        let entry = Entry {
            bytes: answer.as_deref().map_or(0, StoredResponse::size),
            record,
            answer,
        };
        let share = self.shares.entry(key.principal()).or_default();
        share.records += 1;
        share.bytes += entry.bytes;
        self.bytes += entry.bytes;
        if entry.is_refusal() {
            share.refusals.insert(place);
            self.refusals.insert(place);
        }
        self.by_expiry.insert(place);
        self.records.insert(key, entry);
    }

    fn remove(&mut self, key: &Key) {
        let Some(entry) = self.records.remove(key) else {
            return;
        };
        let place = (entry.record.expires, *key);
        self.by_expiry.remove(&place);
        self.refusals.remove(&place);
        self.bytes -= entry.bytes;
        if let Some(share) = self.shares.get_mut(&key.principal()) {
            share.refusals.remove(&place);
            share.records -= 1;
            share.bytes -= entry.bytes;
            if share.records == 0 {
                self.shares.remove(&key.principal());
            }
        }
    }

    fn remove_expired(&mut self, now: Instant, most: usize) -> usize {
        let mut removed = 0;
        while removed < most
            && let Some(&(expires, key)) = self.by_expiry.first()
            && expires <= now
        {
            self.remove(&key);
            removed += 1;
        }
        removed
    }

    /// Returns the records and bytes of a principal.
    fn share(&self, principal: Principal) -> (usize, usize) {
        let share = self.shares.get(&principal);
        share.map_or((0, 0), |share| (share.records, share.bytes))
    }

    /// Makes room for one more record of this principal.
    fn make_room(&mut self, now: Instant, principal: Principal, most: usize) -> Result<(), Full> {
        loop {
            let (own, _) = self.share(principal);
            let others = self.records.len() - own;
            // Half of what the others leave, rounded up.
            if own < most.saturating_sub(others).div_ceil(2) {
                return Ok(());
            }
            if self.remove_expired(now, EXPIRED_BATCH) == 0 && !self.forget_refusal(principal) {
                return Err(Full { own, most });
            }
        }
    }

    /// Returns the response, shortened if it does not fit. It cannot be dropped, since its request had its effect.
    fn fit_response(
        &mut self,
        key: &Key,
        answer: Arc<StoredResponse>,
        most: usize,
    ) -> Arc<StoredResponse> {
        let mut forgets = MAX_FORGOTTEN_PER_RESPONSE;
        loop {
            // A response may be written again: it replaces itself, unless it was just forgotten as a refusal.
            let before = self.records.get(key).map_or(0, |entry| entry.bytes);
            let (_, own) = self.share(key.principal());
            let left = most.saturating_sub(self.bytes - own).div_ceil(2);
            let left = left.saturating_sub(own - before);
            if answer.size() <= left.max(before) {
                return answer;
            }
            let may_fit = answer.size() <= most.div_ceil(2) && forgets > 0;
            if may_fit && self.forget_refusal(key.principal()) {
                forgets -= 1;
                continue;
            }
            let (status, fields) = (answer.status, answer.headers.clone());
            let mut rest = StoredResponse::from_parts(status, fields, None, None);
            if rest.size() > left {
                rest.headers.clear();
            }
            return Arc::new(rest);
        }
    }

    /// Forgets the oldest refusal of this principal, or of one with more records; returns whether there was one.
    fn forget_refusal(&mut self, principal: Principal) -> bool {
        let share = self.shares.get(&principal);
        let own = share.and_then(|share| share.refusals.first());
        let has = share.map_or(0, |share| share.records);
        let has_more = |(_, key): &&Place| self.share(key.principal()).0 > has;
        let found = own.or_else(|| {
            self.refusals
                .iter()
                .take(MAX_REFUSALS_CHECKED)
                .find(has_more)
        });
        let Some(&(_, key)) = found else {
            return false;
        };
        self.remove(&key);
        true
    }
}

impl Entry {
    /// Returns whether the request had no effect, so that it may run again.
    fn is_refusal(&self) -> bool {
        match self.record.stage {
            ClaimStage::Released => true,
            ClaimStage::Completed => self
                .answer
                .as_deref()
                .is_some_and(StoredResponse::is_refusal),
            _ => false,
        }
    }
}

impl Store for Memory {
    type Error = Full;

    fn claim(
        &self,
        key: &Key,
        owner: u128,
        fingerprint: Fingerprint,
        config: &ClaimConfig,
    ) -> impl Future<Output = Result<Claimed, Full>> + Send {
        ready(self.claim_now(key, owner, fingerprint, config))
    }

    fn write(
        &self,
        key: &Key,
        lease: &Lease,
        change: Change,
        config: &ClaimConfig,
    ) -> impl Future<Output = Result<Lease, WriteError<Full>>> + Send {
        ready(self.write_now(key, lease, change, config))
    }

    fn find_unknown(
        &self,
        after: Option<&UnknownOutcome>,
        most: usize,
        _: &ClaimConfig,
    ) -> impl Future<Output = Result<Vec<UnknownOutcome>, Full>> + Send {
        ready(Ok(self.find_unknown_now(after, most)))
    }

    fn resolve(
        &self,
        found: &UnknownOutcome,
        resolution: Resolution,
        config: &ClaimConfig,
    ) -> impl Future<Output = Result<(), ResolveError<Full>>> + Send {
        ready(self.resolve_now(found, &resolution, config))
    }

    fn remove_expired(&self, most: usize) -> impl Future<Output = Result<usize, Full>> + Send {
        let now = self.now();
        ready(Ok(self.lock().remove_expired(now, most)))
    }
}
