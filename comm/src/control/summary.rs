//! What is known of the others in the sentence of a rank that has waited for too long.
//!
//! It travels in a text that is cut at [`TEXT_BYTES_MAX`](super::frame::TEXT_BYTES_MAX), behind the
//! place where that rank stands, and all the others read it as the reason why they end. So it is
//! short however many they are, and begins with those who are most likely to be waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use super::frame::Frame;
use super::verdict::WaitingReport;
use super::{ANSWER_TIMEOUT, Control};
use crate::locked::locked;
use crate::numbers::first_ranges;

/// The most bytes of all of it, but for the number of those of whom nothing is said.
const BYTES_MAX: usize = 224;
/// The most bytes of a call in it.
const CALL_BYTES_MAX: usize = 80;
/// The most runs of ranks that are told of in one go.
const RANGES_MAX: usize = 6;

impl Control {
    /// Which ranks have told the root that they wait in communicator `group`, and have not gone on
    /// since; `None` when the root does not answer within half a second.
    pub fn waiting_reports(&self, group: u64) -> Option<Vec<WaitingReport>> {
        let star = self.star();
        let line = star.line.as_ref()?;
        let _open = locked(&line.question);
        star.heard.ask_about(group);
        let token = line.token.fetch_add(1, Ordering::Relaxed);
        if !star.say(&Frame::Ask { token, group }) {
            return None;
        }
        star.heard.answer(token, ANSWER_TIMEOUT)
    }

    /// Where `members` (world ranks) wait in communicator `group`, for the sentence at a deadline:
    /// first who is not known to wait and who has left, then each call with those who wait in it,
    /// those with few others first. Some 250 bytes at most. May wait for the root for half a
    /// second.
    pub fn waiting_summary(&self, group: u64, members: &[usize]) -> String {
        self.summary_of(group, members, self.waiting_reports(group).as_deref())
    }

    /// The same, of what the root has answered.
    pub(crate) fn summary_of(
        &self,
        group: u64,
        members: &[usize],
        reports: Option<&[WaitingReport]>,
    ) -> String {
        let Some(reports) = reports else {
            return "what the others wait for is not known: the root does not answer".into();
        };
        let mut left: BTreeSet<usize> = self.left_ranks().into_iter().collect();
        left.extend(self.star().heard.parted_ranks(group));
        summary(members, &left, reports)
    }
}

fn summary(members: &[usize], left: &BTreeSet<usize>, reports: &[WaitingReport]) -> String {
    let reports: BTreeMap<usize, &WaitingReport> =
        reports.iter().map(|report| (report.rank, report)).collect();
    let (mut silent, mut gone) = (Vec::new(), Vec::new());
    let mut calls: BTreeMap<(u64, &str), Vec<&WaitingReport>> = BTreeMap::new();
    // As members of a group they may be in any order.
    for rank in members.iter().collect::<BTreeSet<_>>() {
        match reports.get(rank) {
            _ if left.contains(rank) => gone.push(*rank),
            Some(report) => {
                calls.entry((report.seq, &report.description)).or_default().push(report)
            }
            None => silent.push(*rank),
        }
    }
    let mut calls: Vec<_> = calls.into_values().collect();
    // The earliest call first of those that as many stand in.
    calls.sort_by_key(Vec::len);
    let mut pieces = Vec::new();
    if !silent.is_empty() {
        let are = if silent.len() == 1 { "is" } else { "are" };
        let words = format!("{} {are} not known to wait in any call", named(&silent));
        pieces.push((silent.len(), words));
    }
    if !gone.is_empty() {
        pieces.push((gone.len(), format!("{} left the communicator", named(&gone))));
    }
    pieces.extend(calls.iter().map(|standing| (standing.len(), in_call(standing))));
    joined(&pieces)
}

/// Those who wait in one call, and since when.
fn in_call(standing: &[&WaitingReport]) -> String {
    let ranks: Vec<usize> = standing.iter().map(|report| report.rank).collect();
    let ages = standing.iter().map(|report| report.age_ms);
    let (least, most) = (ages.clone().min().unwrap_or(0), ages.max().unwrap_or(0));
    let ages = if least == most { least.to_string() } else { format!("{least}-{most}") };
    let call = shortened(&standing[0].description, CALL_BYTES_MAX);
    let wait = if ranks.len() == 1 { "waits" } else { "wait" };
    format!("{} {wait} in {call}, since {ages} ms", named(&ranks))
}

/// As many of the pieces as there is room for, and of how many ranks the others are.
fn joined(pieces: &[(usize, String)]) -> String {
    let mut text = String::new();
    for (at, (_, piece)) in pieces.iter().enumerate() {
        if at > 0 && text.len() + "; ".len() + piece.len() > BYTES_MAX {
            let more: usize = pieces[at..].iter().map(|(ranks, _)| ranks).sum();
            return format!("{text}; {more} more not listed");
        }
        if at > 0 {
            text.push_str("; ");
        }
        text.push_str(piece);
    }
    text
}

fn named(ranks: &[usize]) -> String {
    let plural = if ranks.len() == 1 { "" } else { "s" };
    format!("rank{plural} {}", first_ranges(ranks, RANGES_MAX))
}

/// The beginning of a text that is longer than so many bytes.
pub(crate) fn shortened(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let mut end = bytes_max;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}..", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rank: usize, seq: u64, age_ms: u32, description: &str) -> WaitingReport {
        WaitingReport { rank, seq, age_ms, description: description.into() }
    }

    #[test]
    fn who_is_missing_is_told_first_and_who_stands_in_one_call_in_one_piece() {
        let mut reports: Vec<_> = (0..5).map(|rank| report(rank, 3, 400, "#3 barrier")).collect();
        reports[2].age_ms = 90;
        reports.push(report(5, 2, 950, "#2 all-gather"));
        reports.push(report(6, 3, 10, "#3 barrier"));
        assert_eq!(
            summary(&[7, 0, 1, 2, 3, 4, 5, 6], &BTreeSet::from([6]), &reports),
            "rank 7 is not known to wait in any call; rank 6 left the communicator; \
             rank 5 waits in #2 all-gather, since 950 ms; \
             ranks 0-4 wait in #3 barrier, since 90-400 ms"
        );
    }

    #[test]
    fn it_is_short_however_many_there_are() {
        let members: Vec<usize> = (0..10_000).collect();
        let of_their_own = |rank: &usize| report(*rank, *rank as u64, 7, &"send ".repeat(100));
        let reports: Vec<_> = members[..9_000].iter().step_by(2).map(of_their_own).collect();
        let text = summary(&members, &BTreeSet::new(), &reports);
        let begin = "ranks 1, 3, 5, 7, 9, 11 and 5494 more are not known to wait in any call; ";
        assert!(text.starts_with(begin), "{text}");
        assert!(text.ends_with(" more not listed") && text.len() < BYTES_MAX + 32, "{text}");
    }
}
