package jsonl

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// objectOf returns a row of a Parquet file as a JSON object, with the columns in their order.
//
// Numbers become JSON numbers with all their digits. Decimals become texts, as JSON writers usually do. Dates, times
// and timestamps become texts in ISO 8601, with Z if they are in UTC. Enums, UUIDs and binary values with text become
// texts. A column of JSON keeps its JSON. Keys of maps become names. NaN becomes null, because some writers mark
// missing numbers with it. Infinities, half-precision numbers, intervals, and binary values without text are errors
// that name the column.
func objectOf(root parquet.Node, row parquet.Row) ([]byte, error) {
	var columns [][]parquet.Value
	for _, values := range row.Range {
		columns = append(columns, values)
	}
	if n := leaves(root); len(columns) != n {
		return nil, fmt.Errorf("the row has %d columns, but the file has %d", len(columns), n)
	}
	a := assembler{}
	if err := a.group(root.Fields(), columns, levels{}); err != nil {
		return nil, err
	}
	return a.out.Bytes(), nil
}

// levels are the definition level and the repetition level of a place in the schema, in Dremel's sense.
type levels struct{ definition, repetition int }

// assembler writes the values of a row as JSON.
type assembler struct{ out bytes.Buffer }

func leaves(n parquet.Node) (count int) {
	if n.Leaf() {
		return 1
	}
	for _, f := range n.Fields() {
		count += leaves(f)
	}
	return count
}

// errDamaged is the error for columns that contradict each other.
var errDamaged = errors.New("the Parquet file is damaged: its columns do not fit together")

// group writes an object of fields.
func (a *assembler) group(fields []parquet.Field, columns [][]parquet.Value, at levels) error {
	a.out.WriteByte('{')
	for i, f := range fields {
		if i > 0 {
			a.out.WriteByte(',')
		}
		a.text(f.Name())
		a.out.WriteByte(':')
		n := leaves(f)
		if err := a.field(f, columns[:n], at); err != nil {
			return fmt.Errorf("column %q: %w", f.Name(), err)
		}
		columns = columns[n:]
	}
	a.out.WriteByte('}')
	return nil
}

// field writes the value of a field: null, a list, or one value.
func (a *assembler) field(n parquet.Node, columns [][]parquet.Value, at levels) error {
	if len(columns) == 0 { // a group without fields
		a.out.WriteString("{}")
		return nil
	}
	switch {
	case slices.ContainsFunc(columns, func(c []parquet.Value) bool { return len(c) == 0 }):
		return errDamaged
	case n.Optional():
		if at.definition++; columns[0][0].DefinitionLevel() < at.definition {
			a.out.WriteString("null")
			return nil
		}
	case n.Repeated():
		return a.repeated("[]", columns, at, func(item [][]parquet.Value, at levels) error { return a.value(n, item, at) })
	}
	return a.value(n, columns, at)
}

// repeated writes a list or an object of items.
func (a *assembler) repeated(brackets string, columns [][]parquet.Value, at levels, item func([][]parquet.Value, levels) error) error {
	items, at, err := itemsOf(columns, at)
	if err != nil {
		return err
	}
	a.out.WriteByte(brackets[0])
	for i, one := range items {
		if i > 0 {
			a.out.WriteByte(',')
		}
		if err := item(one, at); err != nil {
			return err
		}
	}
	a.out.WriteByte(brackets[1])
	return nil
}

// itemsOf splits the columns of a repeated field into the columns of its items.
func itemsOf(columns [][]parquet.Value, at levels) (items [][][]parquet.Value, inside levels, err error) {
	at.definition++
	at.repetition++
	if columns[0][0].DefinitionLevel() < at.definition {
		return nil, at, nil
	}
	for c, column := range columns {
		n := 0
		for from := 0; from < len(column); n++ {
			to := from + 1
			for to < len(column) && column[to].RepetitionLevel() > at.repetition {
				to++
			}
			if c == 0 {
				items = append(items, make([][]parquet.Value, len(columns)))
			}
			if n >= len(items) {
				return nil, at, errDamaged
			}
			items[n][c] = column[from:to]
			from = to
		}
		if n != len(items) {
			return nil, at, errDamaged
		}
	}
	return items, at, nil
}

// value writes one value: a list, a map, a group, or a leaf.
func (a *assembler) value(n parquet.Node, columns [][]parquet.Value, at levels) error {
	if n.Leaf() {
		if len(columns[0]) != 1 {
			return errDamaged
		}
		return a.leaf(n.Type(), columns[0][0])
	}
	fields := n.Fields()
	if len(fields) == 1 && fields[0].Repeated() {
		entry := fields[0]
		switch logical(n.Type()).(type) {
		case *format.ListType:
			return a.repeated("[]", columns, at, func(item [][]parquet.Value, at levels) error { return a.element(entry, item, at) })
		case *format.MapType:
			if len(entry.Fields()) == 2 {
				return a.entries(entry.Fields(), columns, at)
			}
		}
	}
	return a.group(fields, columns, at)
}

// element writes an element of a list: the only field of the repeated group or, in older files, the repeated group
// itself.
func (a *assembler) element(entry parquet.Field, item [][]parquet.Value, at levels) error {
	if entry.Leaf() || len(entry.Fields()) != 1 || entry.Name() == "array" || strings.HasSuffix(entry.Name(), "_tuple") {
		return a.value(entry, item, at)
	}
	return a.field(entry.Fields()[0], item, at)
}

// entries writes a map as an object.
func (a *assembler) entries(fields []parquet.Field, columns [][]parquet.Value, at levels) error {
	seen := map[string]bool{}
	return a.repeated("{}", columns, at, func(item [][]parquet.Value, at levels) error {
		key, n := assembler{}, leaves(fields[0])
		if err := key.field(fields[0], item[:n], at); err != nil {
			return err
		}
		name := key.out.String()
		if json.Unmarshal([]byte(name), &name) != nil {
			name = key.out.String() // the text of a number
		}
		if seen[name] {
			return fmt.Errorf("a map has the key %.80q twice", name)
		}
		seen[name] = true
		a.text(name)
		a.out.WriteByte(':')
		return a.field(fields[1], item[n:], at)
	})
}

func (a *assembler) text(s string) {
	out := json.NewEncoder(&a.out)
	out.SetEscapeHTML(false)
	_ = out.Encode(s) // a text always encodes
	a.out.Truncate(a.out.Len() - 1)
}

// logical returns the annotation of a type, or nil.
func logical(t parquet.Type) format.LogicalTypeValue {
	if l := t.LogicalType(); l != nil {
		return l.Value
	}
	return nil
}

// leaf writes a value of a type without parts.
func (a *assembler) leaf(t parquet.Type, v parquet.Value) error {
	if v.IsNull() {
		a.out.WriteString("null")
		return nil
	}
	switch l := logical(t).(type) {
	case *format.DecimalType:
		return a.decimal(v, int(l.Scale))
	case *format.DateType:
		a.text(time.Unix(int64(v.Int32())*24*60*60, 0).UTC().Format(time.DateOnly))
		return nil
	case *format.TimestampType:
		a.text(formatTime(v.Int64(), l.Unit, timestampForm, l.IsAdjustedToUTC))
		return nil
	case *format.TimeType:
		n := v.Int64()
		if v.Kind() == parquet.Int32 {
			n = int64(v.Int32())
		}
		a.text(formatTime(n, l.Unit, timeForm, false))
		return nil
	case *format.IntType:
		if !l.IsSigned {
			n := v.Uint64()
			if v.Kind() == parquet.Int32 {
				n = uint64(v.Uint32())
			}
			fmt.Fprint(&a.out, n)
			return nil
		}
	case *format.UUIDType:
		id := v.ByteArray()
		if len(id) != 16 {
			return errDamaged
		}
		a.text(fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]))
		return nil
	case *format.JsonType:
		if !json.Valid(v.ByteArray()) {
			return errors.New("its JSON cannot be read")
		}
		return json.Compact(&a.out, v.ByteArray())
	case nil, *format.StringType, *format.EnumType, *format.NullType:
	default:
		return fmt.Errorf("values of the type %s are not supported", t)
	}
	return a.physical(v)
}

// physical writes a value of a type without a special annotation.
func (a *assembler) physical(v parquet.Value) error {
	switch v.Kind() {
	case parquet.Boolean:
		fmt.Fprint(&a.out, v.Boolean())
	case parquet.Int32:
		fmt.Fprint(&a.out, v.Int32())
	case parquet.Int64:
		fmt.Fprint(&a.out, v.Int64())
	case parquet.Int96: // nanoseconds of a Julian day, the timestamps of older writers
		const epoch = 2_440_588 // 1 January 1970
		i := v.Int96()
		nanoseconds := int64(uint64(i[0]) | uint64(i[1])<<32)
		a.text(time.Unix((int64(i[2])-epoch)*24*60*60, nanoseconds).UTC().Format(timestampForm))
	case parquet.Float:
		return a.float(float64(v.Float()), v.Float())
	case parquet.Double:
		return a.float(v.Double(), v.Double())
	case parquet.FixedLenByteArray: // includes half-precision numbers and intervals
		return errors.New("values with a fixed number of bytes are not supported: remove the column, or convert it")
	default:
		b := v.ByteArray()
		if !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0 {
			return errors.New("its bytes are not text: remove the column")
		}
		a.text(string(b))
	}
	return nil
}

// float writes a number, which written has in its own precision.
func (a *assembler) float(v float64, written any) error {
	if math.IsInf(v, 0) {
		return errors.New("it is infinite, which JSON cannot express")
	}
	if math.IsNaN(v) {
		written = nil
	}
	text, err := json.Marshal(written)
	a.out.Write(text)
	return err
}

// decimal writes a decimal with all its digits, without trailing zeros.
func (a *assembler) decimal(v parquet.Value, scale int) error {
	const maxScale = 1000 // digits after the point
	var n big.Int
	switch v.Kind() {
	case parquet.Int32:
		n.SetInt64(int64(v.Int32()))
	case parquet.Int64:
		n.SetInt64(v.Int64())
	default: // two's complement, big-endian
		b := v.ByteArray()
		n.SetBytes(b)
		if len(b) > 0 && b[0]&0x80 != 0 {
			n.Sub(&n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
		}
	}
	if scale < 0 || scale > maxScale {
		return fmt.Errorf("decimals with %d digits after the point are not supported", scale)
	}
	text := new(big.Rat).SetFrac(&n, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale)), nil)).FloatString(scale)
	if scale > 0 {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	a.text(text)
	return nil
}

const (
	timestampForm = "2006-01-02T15:04:05.999999999"
	timeForm      = "15:04:05.999999999"
)

// formatTime writes a number of units since the epoch or since midnight.
func formatTime(n int64, unit format.TimeUnit, form string, utc bool) string {
	var at time.Time
	switch unit.Value.(type) {
	case *format.NanoSeconds:
		at = time.Unix(0, n)
	case *format.MicroSeconds:
		at = time.UnixMicro(n)
	default:
		at = time.UnixMilli(n)
	}
	text := at.UTC().Format(form)
	if utc {
		text += "Z"
	}
	return text
}
