package arch

// interval reads a number n that selects every n-th layer, such as full_attention_interval. If the key is absent, n is absent. null is an
// error, as it is in transformers, where the remainder of a layer's number by None fails.
func interval(from integers, key string, absent int) int {
	n := absent
	from.integer(key, &n)
	if n < 1 {
		from.fail("%s is %d: must be at least 1", key, n)
		return absent
	}
	return n
}

// integers reads integers by key and keeps the first error.
type integers interface {
	integer(key string, to *int)
	fail(format string, args ...any)
}
