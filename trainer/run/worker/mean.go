package worker

// mean accumulates an average. The zero value is empty.
type mean struct {
	sum float64
	n   int
}

// add adds a value.
func (m *mean) add(v float64) { m.sum += v; m.n++ }

// addBool adds 1 for true and 0 for false.
func (m *mean) addBool(b bool) { m.add(indicator(b)) }

// value returns the average; NaN if there is no value.
func (m *mean) value() float64 { return m.sum / float64(m.n) }

// into sets values[name] to the average, unless there is no value.
func (m *mean) into(values map[string]float64, name string) {
	if m.n > 0 {
		values[name] = m.value()
	}
}

// indicator returns 1 for true and 0 for false.
func indicator(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
