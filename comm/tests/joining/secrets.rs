//! What is said of a secret that does not keep what it should.

use crate::{Rank, SLOW, free_port};

#[test]
fn rank_0_says_how_a_secret_is_made_where_ranks_encrypt_with_a_short_one() {
    for (secret, encrypt, is_told) in [
        ("fifteen letters", "1", true),
        ("sixteen letters.", "1", false),
        ("fifteen letters", "0", false),
    ] {
        let root = format!("127.0.0.1:{}", free_port());
        let job = [("BRIGADE_ROOT", root.as_str()), ("BRIGADE_TRANSPORT", "tcp")];
        let secret = [("BRIGADE_SECRET", secret), ("BRIGADE_ENCRYPT", encrypt)];
        let variables = [&job[..], &secret, &SLOW].concat();
        let ranks = [0, 1].map(|rank| Rank::start(rank, 2, &variables));
        let [first, second] = ranks.map(Rank::all);
        let end = "end: joined";
        match &first[..] {
            [told, last] if is_told => {
                let why = "fewer than 16 bytes: whoever records what ranks say may guess it";
                assert!(told.contains(why) && told.contains("openssl rand -hex 32"), "{told}");
                assert_eq!(last, end);
            }
            said => assert!(said == [end] && !is_told, "{said:?}"),
        }
        assert_eq!(second, [end]);
    }
}
