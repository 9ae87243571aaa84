//! The name that was meant, where nobody knows the one that was written.

/// Bytes of a name that is compared with others; ours are shorter. Nothing is near to a longer one, which may hold
/// anything.
const NAME_BYTES_MAX: usize = 256;

/// The name that is most like one that nobody knows, if one is: about a third of it may differ, or it was begun right.
pub fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if unknown.len() > NAME_BYTES_MAX {
        return None;
    }
    let distance = |name: &str| strsim::damerau_levenshtein(name, unknown);
    let far = |name: &str| (!name.starts_with(unknown), distance(name));
    let is_like = |name: &&str| {
        let begun = unknown.len() > 2 && name.starts_with(unknown);
        begun || distance(name) <= (unknown.chars().count() / 3).max(1)
    };
    let known = known.filter(|name| name.len() <= NAME_BYTES_MAX);
    known.filter(is_like).min_by_key(|name| far(name))
}

/// The same as the beginning of a hint: "did you mean …? ", or nothing.
pub fn did_you_mean<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> String {
    nearest(unknown, known).map_or(String::new(), question)
}

/// Whether this was meant, as the beginning of a hint.
pub fn question(name: impl std::fmt::Display) -> String {
    format!("did you mean {name}? ")
}

/// The name that was meant where serde knows a field or a word not: "unknown field `scn`, expected `scan` or `wait_s`".
pub fn nearest_expected(why: &str) -> Option<&str> {
    let is_unknown = ["unknown field `", "unknown variant `"].iter().any(|it| why.starts_with(it));
    let mut named = why.split('`').skip(1).step_by(2);
    let unknown = named.next().filter(|_| is_unknown)?;
    nearest(unknown, named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_one_that_is_like_it() {
        let nearest =
            |unknown: &str| did_you_mean(unknown, ["fast", "slow", "dirty-age-max"].into_iter());
        assert_eq!(nearest("fats"), "did you mean fast? ");
        assert_eq!(nearest("dirty-age"), "did you mean dirty-age-max? ");
        assert_eq!(nearest("dirty_age_max"), "did you mean dirty-age-max? ");
        assert_eq!(nearest("archive"), "");
    }

    #[test]
    fn what_serde_expects_is_compared_and_nothing_long() {
        let word = "unknown variant `forcd`, expected `forced` or `offered`";
        assert_eq!(nearest_expected(word), Some("forced"));
        assert_eq!(nearest_expected("unknown variant `x`, expected one of `forced`, `off`"), None);
        assert_eq!(nearest_expected("invalid type: string `on`, expected `off`"), None);
        let profile = "raid11".parse::<crate::profile::Profile>();
        assert_eq!(
            profile,
            Err("\"raid11\" is no profile: did you mean raid1? there are raid0, nraid+, raid1, \
                 nraid1+, raid10, raid5, raid6"
                .to_owned())
        );
        let long = "A".repeat(30_000);
        assert_eq!(nearest_expected(&format!("unknown field `{long}`, expected `{long}`")), None);
    }
}
