//! Records in the memory of one process.

use std::collections::{BTreeSet, HashMap};
use std::error::Error;
use std::fmt;
use std::future::ready;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use relent_core::Instant;
use relent_core::claim::{ClaimConfig, Fingerprint, Lease, Record};

use super::{Change, Claimed, Key, Resolution, ResolveError, Store, UnknownOutcome, WriteError};
use crate::idempotency::Answer;

/// Records in the memory of this process, for tests and for services of one process whose effects do not
/// outlive it either. A restart forgets them all.
///
/// Each claim removes two records that have expired, so it holds no more than are made in
/// [`ClaimConfig::keep`]; and never more than [`at_most`](Self::at_most).
#[derive(Debug)]
pub struct Memory {
    began: tokio::time::Instant,
    most: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    records: HashMap<Key, (Record, Option<Arc<Answer>>)>,
    by_expiry: BTreeSet<(Instant, Key)>,
}

/// There are as many records as there may be, and none has expired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full(usize);

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the memory for idempotency keys is full with {} of them: raise `at_most`, keep them for \
             less time, or take a store on disk",
            self.0
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
    /// For at most 100,000 records.
    #[must_use]
    pub fn new() -> Self {
        Self {
            began: tokio::time::Instant::now(),
            most: 100_000,
            kept: Mutex::default(),
        }
    }

    /// For at most so many records. Beyond that a new key is an error of the store.
    #[must_use]
    pub fn at_most(self, records: usize) -> Self {
        Self {
            most: records,
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
        let stored = kept.records.get(key);
        if stored.is_none() && kept.records.len() >= self.most {
            return Err(Full(self.most));
        }
        let record = stored.map(|(record, _)| record);
        let (claim, change) = Record::claim(record, now, config, owner, fingerprint);
        let answer = stored.and_then(|(_, answer)| answer.as_deref().cloned());
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
        let stored = kept.records.get(key).map(|(record, _)| record);
        let record = stored
            .filter(|record| !record.is_expired(now))
            .ok_or(WriteError::Gone)?;
        let (record, lease) = change.make(record, now, lease, config)?;
        let answer = match change {
            Change::Complete(answer) => Some(answer),
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
            let (record, _) = kept.records.get(key)?;
            UnknownOutcome::of(*key, *record, now, config)
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
        let stored = kept.records.get(found.key()).map(|(record, _)| record);
        let record = resolution.make(stored, self.now(), found, config)?;
        kept.put(*found.key(), record, resolution.answer().cloned());
        Ok(())
    }
}

impl Kept {
    fn put(&mut self, key: Key, record: Record, answer: Option<Arc<Answer>>) {
        let expires = record.expires;
        if let Some((before, _)) = self.records.insert(key, (record, answer)) {
            self.by_expiry.remove(&(before.expires, key));
        }
        self.by_expiry.insert((expires, key));
    }

    fn remove_expired(&mut self, now: Instant, most: usize) -> usize {
        let mut removed = 0;
        while removed < most
            && let Some(&(expires, key)) = self.by_expiry.first()
            && expires <= now
        {
            self.by_expiry.pop_first();
            self.records.remove(&key);
            removed += 1;
        }
        removed
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
