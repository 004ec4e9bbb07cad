//! The floor for SQLite: the same rows in the same tables by the same writer, and so with the same three durable
//! commits per round, by the fewest and simplest statements with the guarantees of an outbox.
//!
//! An event is stored once (by the index of the table), messages that are due first are claimed first and returned
//! for sending, attempts are written with the fencing token of their claim, and each attempt is stored. The floor
//! looks up no endpoint, makes no identifiers, does not distinguish duplicates from errors, has no order keys, checks
//! no lease, and wakes no worker.

use relent_server::sqlite::{Writer, WriterError};

use crate::{ENDPOINTS, Failed, Floor, MESSAGES, PAYLOAD};

/// The row of a message, its identifier, content type and payload.
type Claimed = (i64, String, String, Vec<u8>);

impl Floor for Writer {
    type Rows = Vec<Claimed>;

    async fn enqueue(&self, round: u64) -> Result<(), Failed> {
        let enqueued = self.run(move |connection| {
            let mut message = connection.prepare_cached(
                "INSERT INTO relent_message_1 (id, endpoint, event, topic, content_type, payload, created)
                 VALUES ('msg_' || ?1 || '_000000000000000000000', ?2, ?1, '', 'application/json', ?3, 1)",
            )?;
            let mut delivery = connection.prepare_cached(
                "INSERT INTO relent_delivery_1 (row, endpoint, state, due, began, written)
                 VALUES (?1, ?2, 0, 1, 1, 1)",
            )?;
            for number in 0..MESSAGES {
                let event = format!("{round}-{number}");
                let endpoint = 1 + number % ENDPOINTS;
                message.execute((event, endpoint, &PAYLOAD[..]))?;
                delivery.execute((connection.last_insert_rowid(), endpoint))?;
            }
            Ok::<_, WriterError>(())
        });
        Ok(enqueued.await?)
    }

    async fn claim(&self) -> Result<Vec<Claimed>, Failed> {
        let claimed = self.run(|connection| {
            let mut due = connection.prepare_cached(
                "SELECT row FROM relent_delivery_1 WHERE endpoint = ?1 AND state = 0 AND due <= 2 ORDER BY due",
            )?;
            let mut claim = connection.prepare_cached(
                "UPDATE relent_delivery_1 SET state = 1, fence = 1, attempt = 1 WHERE row = ?1",
            )?;
            let mut read = connection.prepare_cached(
                "SELECT id, content_type, payload FROM relent_message_1 WHERE row = ?1",
            )?;
            let mut claimed = Vec::new();
            for endpoint in 1..=ENDPOINTS {
                let due = due.query_map([endpoint], |row| row.get(0))?;
                for row in due.collect::<Result<Vec<i64>, _>>()? {
                    claim.execute([row])?;
                    claimed.push(read.query_row([row], |read| {
                        Ok((row, read.get(0)?, read.get(1)?, read.get(2)?))
                    })?);
                }
            }
            Ok::<_, WriterError>(claimed)
        });
        Ok(claimed.await?)
    }

    async fn settle(&self, rows: &Vec<Claimed>) -> Result<usize, Failed> {
        let rows: Vec<_> = rows.iter().map(|claimed| claimed.0).collect();
        let settled = self.run(move |connection| {
            let mut settle = connection.prepare_cached(
                "UPDATE relent_delivery_1 SET state = 2, session = ?2, ended = 1, written = 1
                 WHERE row = ?1 AND state = 1 AND fence = 1",
            )?;
            let mut attempt = connection.prepare_cached(
                "INSERT INTO relent_attempt_1 (row, number, began, took, status, error, excerpt, address)
                 VALUES (?1, 1, 1, 1, 200, '', 'ok', '192.0.2.1:443')",
            )?;
            let mut settled = 0;
            for row in rows {
                settled += settle.execute((row, [1; 50]))?;
                attempt.execute([row])?;
            }
            Ok::<_, WriterError>(settled)
        });
        Ok(settled.await?)
    }
}
