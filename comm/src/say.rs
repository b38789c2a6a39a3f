//! Where a sentence goes that a person should read although no call has failed.

use std::io::{self, Write};

/// Say it where the user looks: in the log if there is one, else on standard error.
pub(crate) fn warn(sentence: &str) {
    tracing::warn!("{sentence}");
    if !tracing::dispatcher::has_been_set() {
        say(&mut io::stderr(), sentence);
    }
}

/// In one piece, as other ranks write there, too. Nobody who trains shall lose a run because there
/// is nobody who reads along any more, at which the standard library's macro panics.
fn say(errors: &mut dyn Write, sentence: &str) {
    let _gone = errors.write_all(format!("brigade: {sentence}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written, piece by piece.
    struct Pieces(Vec<Vec<u8>>);

    impl Write for Pieces {
        fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
            self.0.push(piece.to_vec());
            Ok(piece.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_sentence_is_written_in_one_piece() {
        let mut pieces = Pieces(Vec::new());
        say(&mut pieces, "rank 1 has not come");
        assert_eq!(pieces.0, [b"brigade: rank 1 has not come\n"]);
    }
}
