//! Records in the memory of one process.

use std::collections::{BTreeSet, HashMap};
use std::error::Error;
use std::fmt;
use std::future::ready;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use relent_core::Instant;
use relent_core::claim::{ClaimConfig, Fingerprint, Lease, Record, Stage};

use super::answer::Answer;
use super::{Change, Claimed, Key, Resolution, ResolveError, Store, UnknownOutcome, WriteError};

/// Records in the memory of this process, for tests and for services of one process whose effects do not
/// outlive it either. A restart forgets them all.
///
/// Each claim removes two records that have expired, so it holds no more than are made in
/// [`ClaimConfig::keep`]; and never more than [`at_most`](Self::at_most), with answers of
/// [`at_most_bytes`](Self::at_most_bytes).
///
/// # When it is full
/// Each [principal](Key::principal) may have half of what the others leave. So a principal that is alone has half of the
/// store, and however much it sends, the first key of another finds a place. A new key beyond that share takes the place
/// of the oldest refusal of the same principal: a request that has had no effect, or that was answered with 4xx (over
/// gRPC with a status that says the same). A duplicate of it runs again. Where the principal has none, the
/// oldest refusal of a principal with more records goes. What runs, is unknown, or has any other answer is never forgotten
/// before it expires: if there is nothing else the claim is the error [`Full`], and the layer refuses the request (503).
///
/// An answer for which there are no bytes left is kept without its body, or its fields: its duplicates get 410, and
/// nothing runs again.
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
    /// What may be forgotten for others.
    refusals: BTreeSet<Place>,
    shares: HashMap<Principal, Share>,
    bytes: usize,
}

/// A record in the order of when it expires.
type Place = (Instant, Key);
type Principal = [u8; 8];

#[derive(Debug)]
struct Entry {
    record: Record,
    answer: Option<Arc<Answer>>,
    /// Of the answer.
    bytes: usize,
}

/// What one principal has.
#[derive(Debug, Default)]
struct Share {
    records: usize,
    bytes: usize,
    refusals: BTreeSet<Place>,
}

/// So many refusals are looked at for one that is to be forgotten.
const LOOK: usize = 8;
/// So many are forgotten for one answer.
const MOST_FORGOTTEN: usize = 16;
/// So many records that have expired are removed when there is no place.
const BATCH: usize = 64;

/// A principal has as many records as it may have, and none of them may be forgotten.
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
    /// For at most 200,000 records and 128 MiB of answers.
    #[must_use]
    pub fn new() -> Self {
        Self {
            began: tokio::time::Instant::now(),
            most: 200_000,
            most_bytes: 128 << 20,
            kept: Mutex::default(),
        }
    }

    /// For at most so many records, at about 400 bytes each beside their answers: 200,000 by default. One principal has at
    /// most half of them.
    #[must_use]
    pub fn at_most(self, records: usize) -> Self {
        Self {
            most: records,
            ..self
        }
    }

    /// For answers of so many bytes together, bodies and fields: 128 MiB by default. One principal has at most half of
    /// them.
    #[must_use]
    pub fn at_most_bytes(self, bytes: usize) -> Self {
        Self {
            most_bytes: bytes,
            ..self
        }
    }

    /// How many records there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().records.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes the answers have together, bodies and fields.
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
        // An answer is put in together with its record.
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
            Change::Complete(answer) => Some(kept.fitting(key, answer, self.most_bytes)),
            _ => None,
        };
        kept.put(*key, record, answer);
        Ok(lease)
    }

    fn find_unknown_now(
        &self,
        after: Option<&UnknownOutcome>,
        most: usize,
        config: &ClaimConfig,
    ) -> Vec<UnknownOutcome> {
        let kept = self.lock();
        let now = self.now();
        let after = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.place()));
        let keys = kept.by_expiry.range((after, Bound::Unbounded));
        let found = keys.filter_map(|(_, key)| {
            let stored = kept.records.get(key)?;
            UnknownOutcome::of(*key, stored.record, now, config)
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
        let answer = answer.map(|answer| kept.fitting(found.key(), answer, self.most_bytes));
        kept.put(*found.key(), record, answer);
        Ok(())
    }
}

impl Kept {
    fn put(&mut self, key: Key, record: Record, answer: Option<Arc<Answer>>) {
        self.remove(&key);
        let place = (record.expires, key);
        let entry = Entry {
            bytes: answer.as_deref().map_or(0, Answer::size),
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

    /// How many records this principal has, and how many bytes.
    fn share(&self, principal: Principal) -> (usize, usize) {
        let share = self.shares.get(&principal);
        share.map_or((0, 0), |share| (share.records, share.bytes))
    }

    /// Makes room for one more record of this principal.
    fn make_room(&mut self, now: Instant, principal: Principal, most: usize) -> Result<(), Full> {
        loop {
            let (own, _) = self.share(principal);
            let others = self.records.len() - own;
            // Half of what the others leave, and all of it if that is one place.
            if own < most.saturating_sub(others).div_ceil(2) {
                return Ok(());
            }
            if self.remove_expired(now, BATCH) == 0 && !self.forget_refusal(principal) {
                return Err(Full { own, most });
            }
        }
    }

    /// As much of an answer as there is room for. It has to be kept in some way: its request has had its effect.
    fn fitting(&mut self, key: &Key, answer: Arc<Answer>, most: usize) -> Arc<Answer> {
        let before = self.records.get(key).map_or(0, |entry| entry.bytes);
        let mut forgets = MOST_FORGOTTEN;
        loop {
            let (_, own) = self.share(key.principal());
            let left = most.saturating_sub(self.bytes - own).div_ceil(2);
            let left = left.saturating_sub(own - before);
            if answer.size() <= left {
                return answer;
            }
            let may_fit = answer.size() <= most.div_ceil(2) && forgets > 0;
            if may_fit && self.forget_refusal(key.principal()) {
                forgets -= 1;
                continue;
            }
            let (status, fields) = (answer.status, answer.headers.clone());
            let mut rest = Answer::from_parts(status, fields, None, None);
            if rest.size() > left {
                rest.headers.clear();
            }
            return Arc::new(rest);
        }
    }

    /// Forgets the oldest refusal of this principal, or one of another that has more records; whether there was one.
    fn forget_refusal(&mut self, principal: Principal) -> bool {
        let share = self.shares.get(&principal);
        let own = share.and_then(|share| share.refusals.first());
        let has = share.map_or(0, |share| share.records);
        let has_more = |(_, key): &&Place| self.share(key.principal()).0 > has;
        let found = own.or_else(|| self.refusals.iter().take(LOOK).find(has_more));
        let Some(&(_, key)) = found else {
            return false;
        };
        self.remove(&key);
        true
    }
}

impl Entry {
    /// Whether its request has had no effect, so that it may run again.
    fn is_refusal(&self) -> bool {
        match self.record.stage {
            Stage::Released => true,
            Stage::Completed => self.answer.as_deref().is_some_and(Answer::is_refusal),
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
        config: &ClaimConfig,
    ) -> impl Future<Output = Result<Vec<UnknownOutcome>, Full>> + Send {
        ready(Ok(self.find_unknown_now(after, most, config)))
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
