//! Slurm's way to write a list of hosts: `node[1-3,7],other`.

/// The first host of a list, or `None` for what is no such list.
///
/// `node[001-128,200],x` is `node001`; there may be several brackets in a name.
pub(super) fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    while let Some(at) = rest.find([',', '[', ']']) {
        host.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            b'[' => {
                let (numbers, behind) = rest[at + 1..].split_once(']')?;
                let first = numbers.split([',', '-']).next()?;
                if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
                    return None;
                }
                host.push_str(first);
                rest = behind;
            }
            b',' => {
                rest = "";
            }
            _ => return None,
        }
    }
    host.push_str(rest);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (!host.is_empty() && host.bytes().all(plain)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::first_host;

    #[test]
    fn the_first_host_of_every_kind_of_list() {
        for (list, first) in [
            ("node[1-3,7],x", Some("node1")),
            ("node[001-128]", Some("node001")),
            ("node[7]", Some("node7")),
            ("x,node[1-3]", Some("x")),
            ("alone", Some("alone")),
            ("rack[2-3]node[10,12]-ib.example.org,y", Some("rack2node10-ib.example.org")),
            ("", None),
            (",x", None),
            ("node[1-3", None),
            ("node[]", None),
            ("node[-3]", None),
            ("node]1[", None),
            ("node[a-b]", None),
            ("no de", None),
        ] {
            assert_eq!(first_host(list).as_deref(), first, "{list:?}");
        }
    }
}
