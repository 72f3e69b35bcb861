//! Kept outcomes: the encoding in which a store keeps the outcomes of a flush with its number, until the lane's next
//! flush. If the flush is sent again, its outcomes are read back.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{ExistingExecution, Flush, Outcome, RequestResult, Status, StoreError, Write};
use crate::key::Key;

/// The version of the encoding.
const VERSION: u8 = 1;

/// An outcome in the encoding.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KeptOutcome {
    Queued,
    Duplicate(KeptExecution),
    Deduplicated(Option<KeptExecution>),
    Full,
    Done(Option<KeptKey>),
    Pending,
    NotApplicable(i64),
    CancelRequested,
    Cancelled,
    NotFound,
    Rejected(Arc<str>),
    AlreadySent,
    Ended(i64),
}

/// The text of a key.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeptKey(String);

/// An existing execution: key, given id, workflow, fingerprint, parent, and number of the status.
#[derive(Serialize, Deserialize)]
pub struct KeptExecution(KeptKey, Option<Arc<str>>, Arc<str>, Option<i64>, Option<KeptKey>, i64);

/// Returns the outcomes of a flush that a store keeps for a resend: all but those of Wakes, on which nothing depends.
pub fn outcomes_to_keep<'a>(
    flush: &Flush,
    outcomes: &'a [(usize, Outcome)],
) -> impl Iterator<Item = &'a (usize, Outcome)> {
    outcomes.iter().filter(|(i, _)| !matches!(flush.writes.get(*i), Some(Write::Wake(_))))
}

/// Encodes the outcomes of a flush as JSON, with the indexes of their Writes. Returns `None` if all Writes were
/// applied.
///
/// An outcome takes up to 30 bytes. A `Duplicate` or `Deduplicated` takes up to 130 bytes more, with the workflow_id
/// (at most 1,024 bytes) and the name of the workflow (at most 255) of the existing execution. So 4,096 duplicates with
/// ids and names of 10 bytes take at most 0.7 MB, and with the longest ones 6 MB.
pub fn encode_outcomes<'a>(outcomes: impl IntoIterator<Item = &'a (usize, Outcome)>) -> Option<String> {
    let kept: Vec<(usize, KeptOutcome)> =
        outcomes.into_iter().filter_map(|(i, outcome)| Some((*i, keep(outcome)?))).collect();
    // the outcomes contain nothing that JSON cannot represent
    if kept.is_empty() { None } else { serde_json::to_string(&(VERSION, kept)).ok() }
}

/// Decodes the result of [`encode_outcomes`].
pub fn decode_outcomes(text: Option<&str>) -> Result<Vec<(usize, Outcome)>, StoreError> {
    let Some(text) = text else { return Ok(Vec::new()) };
    let kept: (u8, Vec<(usize, KeptOutcome)>) =
        serde_json::from_str(text).map_err(|_| unreadable_outcomes())?;
    if kept.0 != VERSION {
        return Err(unreadable_outcomes());
    }
    kept.1.into_iter().map(|(i, outcome)| Ok((i, restore(outcome)?))).collect()
}

/// Returns the error for kept outcomes that this version does not support.
pub fn unreadable_outcomes() -> StoreError {
    StoreError::Corrupt("the outcomes of a flush cannot be read".into())
}

/// Returns the outcome in the encoding; `None` for an outcome that no store returns.
fn keep(outcome: &Outcome) -> Option<KeptOutcome> {
    Some(match outcome {
        Outcome::Queued => KeptOutcome::Queued,
        Outcome::Duplicate(existing) => KeptOutcome::Duplicate(existing.as_ref().into()),
        Outcome::Deduplicated(holder) => KeptOutcome::Deduplicated(holder.as_deref().map(Into::into)),
        Outcome::Full => KeptOutcome::Full,
        Outcome::RequestHandled(RequestResult::Done, parent) => KeptOutcome::Done(parent.map(Into::into)),
        Outcome::RequestHandled(RequestResult::Pending, _) => KeptOutcome::Pending,
        Outcome::RequestHandled(RequestResult::NotApplicable(status), _) => {
            KeptOutcome::NotApplicable(*status as i64)
        }
        Outcome::CancelRequested => KeptOutcome::CancelRequested,
        Outcome::Cancelled => KeptOutcome::Cancelled,
        Outcome::NotFound => KeptOutcome::NotFound,
        Outcome::Rejected(reason) => KeptOutcome::Rejected(reason.clone()),
        Outcome::AlreadySent => KeptOutcome::AlreadySent,
        Outcome::Ended(status) => KeptOutcome::Ended(*status as i64),
        Outcome::Applied | Outcome::Fenced | Outcome::Dropped => return None,
    })
}

/// Returns the outcome of its encoding.
fn restore(outcome: KeptOutcome) -> Result<Outcome, StoreError> {
    let handled = |result| Outcome::RequestHandled(result, None);
    Ok(match outcome {
        KeptOutcome::Queued => Outcome::Queued,
        KeptOutcome::Duplicate(existing) => Outcome::Duplicate(Box::new(existing.try_into()?)),
        KeptOutcome::Deduplicated(holder) => {
            Outcome::Deduplicated(holder.map(|holder| holder.try_into().map(Box::new)).transpose()?)
        }
        KeptOutcome::Full => Outcome::Full,
        KeptOutcome::Done(parent) => {
            Outcome::RequestHandled(RequestResult::Done, parent.map(TryInto::try_into).transpose()?)
        }
        KeptOutcome::Pending => handled(RequestResult::Pending),
        KeptOutcome::NotApplicable(status) => handled(RequestResult::NotApplicable(restore_status(status)?)),
        KeptOutcome::CancelRequested => Outcome::CancelRequested,
        KeptOutcome::Cancelled => Outcome::Cancelled,
        KeptOutcome::NotFound => Outcome::NotFound,
        KeptOutcome::Rejected(reason) => Outcome::Rejected(reason),
        KeptOutcome::AlreadySent => Outcome::AlreadySent,
        KeptOutcome::Ended(status) => Outcome::Ended(restore_status(status)?),
    })
}

fn restore_status(number: i64) -> Result<Status, StoreError> {
    Status::from_number(number).ok_or_else(unreadable_outcomes)
}

impl From<Key> for KeptKey {
    fn from(key: Key) -> Self {
        Self(key.to_string())
    }
}

impl TryFrom<KeptKey> for Key {
    type Error = StoreError;

    fn try_from(kept: KeptKey) -> Result<Self, StoreError> {
        Key::from_text(&kept.0).ok_or_else(unreadable_outcomes)
    }
}

impl From<&ExistingExecution> for KeptExecution {
    fn from(existing: &ExistingExecution) -> Self {
        let ExistingExecution { key, given_id, workflow, fingerprint, parent, status } = existing;
        let (fingerprint, parent) = (fingerprint.map(u64::cast_signed), parent.map(Into::into));
        Self((*key).into(), given_id.clone(), workflow.clone(), fingerprint, parent, *status as i64)
    }
}

impl TryFrom<KeptExecution> for ExistingExecution {
    type Error = StoreError;

    fn try_from(kept: KeptExecution) -> Result<Self, StoreError> {
        let KeptExecution(key, given_id, workflow, fingerprint, parent, status) = kept;
        let (fingerprint, parent) = (fingerprint.map(i64::cast_unsigned), parent.map(TryInto::try_into));
        let (key, parent, status) = (key.try_into()?, parent.transpose()?, restore_status(status)?);
        Ok(Self { key, given_id, workflow, fingerprint, parent, status })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn existing(id: Option<&str>) -> ExistingExecution {
        ExistingExecution {
            key: Key::mint(1023),
            given_id: id.map(Arc::from),
            workflow: "w".into(),
            fingerprint: id.map(|_| u64::MAX),
            parent: id.is_none().then(|| Key::mint(0)),
            status: Status::Waiting,
        }
    }

    fn duplicate(id: Option<&str>) -> Outcome {
        Outcome::Duplicate(Box::new(existing(id)))
    }

    #[test]
    fn decoded_outcomes_equal_the_encoded_ones() {
        let mut outcomes = vec![
            Outcome::Queued,
            duplicate(Some("order-7 \u{1f980} \0")),
            duplicate(None),
            Outcome::Deduplicated(Some(Box::new(existing(None)))),
            Outcome::Deduplicated(None),
            Outcome::Full,
            Outcome::RequestHandled(RequestResult::Done, None),
            Outcome::RequestHandled(RequestResult::Done, Some(Key::mint(7))),
            Outcome::RequestHandled(RequestResult::Pending, None),
            Outcome::CancelRequested,
            Outcome::Cancelled,
            Outcome::NotFound,
            Outcome::Rejected("no".into()),
            Outcome::AlreadySent,
        ];
        outcomes.extend(Status::ALL.map(Outcome::Ended));
        outcomes.extend(
            Status::ALL.map(|status| Outcome::RequestHandled(RequestResult::NotApplicable(status), None)),
        );
        let outcomes: Vec<(usize, Outcome)> =
            outcomes.into_iter().enumerate().map(|(i, outcome)| (i * 300, outcome)).collect();
        let kept = encode_outcomes(&outcomes).unwrap();
        assert_eq!(decode_outcomes(Some(&kept)).unwrap(), outcomes);
    }

    #[test]
    fn applied_writes_take_no_bytes() {
        assert_eq!(encode_outcomes(&[]), None);
        assert_eq!(encode_outcomes(&[(0, Outcome::Applied)]), None);
        assert_eq!(decode_outcomes(None).unwrap(), []);
    }

    #[test]
    fn damaged_outcomes_are_corrupt() {
        let kept = encode_outcomes(&[(3, duplicate(Some("x")))]).unwrap();
        let unknown_version = kept.replacen("[1,", "[2,", 1);
        let unknown_status = kept.replace(",3]", ",100]");
        let wrong_key = kept.replacen('-', "", 1);
        for damaged in ["", &kept[..kept.len() - 1], &unknown_version, &unknown_status, &wrong_key] {
            let result = decode_outcomes(Some(damaged));
            assert!(matches!(result, Err(StoreError::Corrupt(_))), "{damaged:?}: {result:?}");
        }
    }

    #[test]
    fn size_of_a_full_flush_of_duplicates_is_bounded() {
        let size = |id: &str, workflow: &str| {
            let outcomes: Vec<_> = (0..4096)
                .map(|i| {
                    let mut existing = existing(Some(id));
                    existing.workflow = workflow.into();
                    existing.parent = Some(Key::mint(0));
                    (i, Outcome::Deduplicated(Some(Box::new(existing))))
                })
                .collect();
            encode_outcomes(&outcomes).unwrap().len()
        };
        let typical = size("order-1234", "send_mails");
        assert!(typical < 700_000, "{typical}");
        let longest = size(&"x".repeat(1024), &"w".repeat(255));
        assert!(longest < 6_100_000, "{longest}");
    }
}
