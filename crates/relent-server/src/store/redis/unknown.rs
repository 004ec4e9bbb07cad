//! Unknown outcomes in Redis.

use std::collections::BTreeMap;

use relent_core::idempotency::{
    ClaimConfig, ClaimStage, Fingerprint, Record, Resolution as Decided,
};

use super::super::micros::{instant, of, span};
use super::{Redis, RedisError};
use crate::store::{Key, Resolution, UnknownOutcome};

/// Keys that one call scans, which blocks other clients for about 1 ms.
const KEYS_PER_SCAN: usize = 1000;

/// A record in the reply of the script: key, fingerprint, owner, fencing token, whether it runs, end of the lease or
/// of the execution, step, repeated, and expiry.
type Found = (Vec<u8>, Vec<u8>, Vec<u8>, u64, u8, i64, u32, u8, i64);

impl Redis {
    /// Returns the first `most` outcomes after `after`. Redis does not order keys, so all are scanned.
    pub(super) async fn scan(
        &self,
        after: Option<&UnknownOutcome>,
        most: usize,
    ) -> Result<Vec<UnknownOutcome>, RedisError> {
        let (mut first, mut cursor) = (BTreeMap::new(), "0".to_owned());
        loop {
            let mut call = self.scripts.find_unknown.prepare_invoke();
            call.arg(&cursor)
                .arg(self.pattern())
                .arg(self.name(&Key([0; 32])).len())
                .arg(KEYS_PER_SCAN);
            let reply: (String, i64, Vec<Found>) = self.connection.call(&call).await?;
            let (next, now, found) = reply;
            for found in found {
                let Some((key, record)) = read(found) else {
                    return Err(RedisError::Record(
                        crate::store::answer::InvalidStoredResponse,
                    ));
                };
                // A scan may report a key more than once.
                let found = UnknownOutcome::of(key, record, instant(now));
                let follows = |found: &UnknownOutcome| {
                    after.is_none_or(|after| after.place() < found.place())
                };
                first.extend(found.filter(follows).map(|found| (found.place(), found)));
                if first.len() > most {
                    first.pop_last();
                }
            }
            if next == "0" {
                return Ok(first.into_values().collect());
            }
            cursor = next;
        }
    }

    /// Returns the pattern of the keys of all records.
    fn pattern(&self) -> Vec<u8> {
        let mut pattern = Vec::with_capacity(self.namespace.len() + 2);
        for byte in self.namespace.bytes() {
            if b"*?[]\\".contains(&byte) {
                pattern.push(b'\\');
            }
            pattern.push(byte);
        }
        pattern.extend_from_slice(b":*");
        pattern
    }

    pub(super) async fn call_resolve(
        &self,
        found: &UnknownOutcome,
        resolution: &Resolution,
        config: &ClaimConfig,
    ) -> Result<String, ::redis::RedisError> {
        let record = found.record();
        let (runs, ends) = match record.stage {
            ClaimStage::Running { until } => (1, of(until)),
            ClaimStage::Unknown { since } => (0, of(since)),
            _ => (0, 0),
        };
        let (becomes, digest) = match resolution.decided() {
            Decided::Applied { digest } => ("completed", digest),
            Decided::NotApplied => ("released", 0),
        };
        let answer = resolution.answer().map(|answer| answer.to_bytes());
        let mut call = self.scripts.resolve.key(self.name(found.key()));
        call.arg(&record.owner.to_be_bytes()[..])
            .arg(record.fence)
            .arg(runs)
            .arg(ends)
            .arg(record.step)
            .arg(u8::from(record.repeated))
            .arg(of(record.expires))
            .arg(&record.fingerprint.0[..])
            .arg(becomes)
            .arg(&digest.to_be_bytes()[..])
            .arg(span(config.retention))
            .arg(answer.unwrap_or_default());
        self.connection.call(&call).await
    }
}

fn read(found: Found) -> Option<(Key, Record)> {
    let (key, fingerprint, owner, fence, runs, ends, step, repeated, expires) = found;
    let ends = instant(ends);
    let record = Record {
        fingerprint: Fingerprint(fingerprint.try_into().ok()?),
        owner: u128::from_be_bytes(owner.try_into().ok()?),
        fence,
        stage: if runs == 1 {
            ClaimStage::Running { until: ends }
        } else {
            ClaimStage::Unknown { since: ends }
        },
        step,
        repeated: repeated != 0,
        expires: instant(expires),
    };
    Some((Key(key.try_into().ok()?), record))
}
