package weights

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
)

// Limits of the scan, far above the needs of dense models.
const (
	maxPickleBytes = 16 << 20
	maxPickleDepth = 1 << 18 // entries of stack and memo; all items of a state dict are on the stack before SETITEMS
)

// Values on the scanner's stack, apart from strings, integers, booleans, binStorage and *binTensor. Pickles with other values are refused.
type (
	pickleMark   struct{}
	pickleGlobal string
	pickleTuple  []any
	pickleDict   struct { // dict or OrderedDict
		ordered bool
		keys    []any
		values  []any
	}
)

// storageTypes, the constructor of ordered dicts and the one of tensors are the only globals that a state dict may import.
var storageTypes = map[pickleGlobal]DType{"torch.FloatStorage": F32, "torch.HalfStorage": F16, "torch.BFloat16Storage": BF16}

const (
	globalDict   pickleGlobal = "collections.OrderedDict"
	globalTensor pickleGlobal = "torch._utils._rebuild_tensor_v2"
)

// scanPickle reads a pickled state dict (protocol 2, written by torch.save) without executing code. It accepts only the
// opcodes that build strings, integers, tuples, dicts and tensors, and refuses every other opcode, global and value. It
// returns the tensors in the order of the file.
func scanPickle(data []byte) ([]binTensor, error) {
	p := &pickleScanner{data: data, memo: map[uint64]any{}}
	for {
		at := p.at
		op, err := p.byte()
		if err == nil && op == '.' {
			break
		}
		if err == nil {
			err = p.step(op)
		}
		if err == nil && len(p.stack)+len(p.memo) > maxPickleDepth {
			err = fmt.Errorf("stack and memo have more than %d entries", maxPickleDepth)
		}
		if err != nil {
			return nil, fmt.Errorf("pickle byte %d: %w", at, err)
		}
	}
	if p.at != len(p.data) {
		return nil, errors.New("pickle: data after its end")
	}
	return p.result()
}

type pickleScanner struct {
	data  []byte
	at    int
	stack []any
	memo  map[uint64]any
}

// step interprets one opcode. The names are from Python's pickletools.
func (p *pickleScanner) step(op byte) error {
	switch op {
	case 0x80: // PROTO
		version, err := p.byte()
		if err == nil && version != 2 {
			err = fmt.Errorf("protocol %d: only 2 is supported", version)
		}
		return err
	case '(': // MARK
		p.push(pickleMark{})
	case '}': // EMPTY_DICT
		p.push(&pickleDict{})
	case ')': // EMPTY_TUPLE
		p.push(pickleTuple{})
	case 0x88, 0x89: // NEWTRUE, NEWFALSE
		p.push(op == 0x88)
	case 'X': // BINUNICODE
		return p.text()
	case 'K': // BININT1
		return p.integer(1, false)
	case 'M': // BININT2
		return p.integer(2, false)
	case 'J': // BININT
		return p.integer(4, true)
	case 0x8a: // LONG1
		width, err := p.byte()
		if err != nil {
			return err
		}
		return p.integer(int(width), true)
	case 'c': // GLOBAL
		return p.global()
	case 'q', 'r', 'h', 'j':
		return p.remember(op)
	case 't', 0x85, 0x86, 0x87:
		return p.tuple(op)
	case 'Q': // BINPERSID
		return p.persistent()
	case 'R': // REDUCE
		return p.reduce()
	case 's', 'u': // SETITEM, SETITEMS
		return p.setItems(op)
	case 'b': // BUILD
		return p.build()
	default:
		return fmt.Errorf("opcode %#x is not used in a state dict of tensors: save plain tensors with torch.save(model.state_dict(), ...)", op)
	}
	return nil
}

// text pushes a string.
func (p *pickleScanner) text() error {
	length, err := p.number(4)
	if err != nil {
		return err
	}
	text, err := p.take(int(length))
	if err == nil && !utf8.Valid(text) {
		err = errors.New("string is not UTF-8")
	}
	p.push(string(text))
	return err
}

// integer pushes an integer of the given number of bytes.
func (p *pickleScanner) integer(width int, signed bool) error {
	if width > 8 {
		return fmt.Errorf("integer of %d bytes", width)
	}
	v, err := p.number(width)
	if above := 64 - 8*width; signed { // bits that take the sign
		v = uint64(int64(v<<above) >> above)
	}
	p.push(int64(v))
	return err
}

func (p *pickleScanner) global() error {
	var parts [2]string
	for i := range parts {
		line, _, ended := bytes.Cut(p.data[p.at:], []byte("\n"))
		if !ended {
			return errors.New("cut short")
		}
		parts[i] = string(line[:min(len(line), 200)])
		p.at += len(line) + 1
	}
	name := pickleGlobal(parts[0] + "." + parts[1])
	if _, storage := storageTypes[name]; !storage && name != globalDict && name != globalTensor {
		return fmt.Errorf("global %q is not used in a state dict of F32, F16 or BF16 tensors", name)
	}
	p.push(name)
	return nil
}

// remember stores or fetches a memo entry: BINPUT, LONG_BINPUT, BINGET, LONG_BINGET.
func (p *pickleScanner) remember(op byte) error {
	width := 1
	if op == 'r' || op == 'j' {
		width = 4
	}
	key, err := p.number(width)
	if err != nil {
		return err
	}
	if op == 'h' || op == 'j' {
		v, ok := p.memo[key]
		if !ok {
			return fmt.Errorf("memo entry %d was never stored", key)
		}
		p.push(v)
		return nil
	}
	if len(p.stack) == 0 {
		return errors.New("nothing to store in the memo")
	}
	p.memo[key] = p.stack[len(p.stack)-1]
	return nil
}

// tuple collects values into a tuple: TUPLE (from the mark), TUPLE1, TUPLE2, TUPLE3.
func (p *pickleScanner) tuple(op byte) error {
	var items []any
	var err error
	if op == 't' {
		items, err = p.popMark()
	} else {
		items, err = p.popN(int(op-0x85) + 1)
	}
	if err != nil {
		return err
	}
	if len(items) > 16 {
		return fmt.Errorf("tuple of %d items", len(items))
	}
	p.push(pickleTuple(items))
	return nil
}

// persistent converts ('storage', class, key, location, size) to a storage.
func (p *pickleScanner) persistent() error {
	items, err := p.popN(1)
	if err != nil {
		return err
	}
	id, _ := items[0].(pickleTuple)
	if len(id) != 5 || id[0] != "storage" {
		return errors.New("persistent id is not a storage")
	}
	class, okClass := id[1].(pickleGlobal)
	key, okKey := id[2].(string)
	_, okLocation := id[3].(string)
	size, okSize := id[4].(int64)
	dtype, okType := storageTypes[class]
	if len(key) > strictjson.MaxKeyBytes {
		return fmt.Errorf("storage key of %d bytes", len(key))
	}
	if !okClass || !okKey || !okLocation || !okSize || !okType || size < 0 || size > math.MaxInt64/8 {
		return errors.New("persistent id is not a storage of F32, F16 or BF16")
	}
	p.push(binStorage{key, dtype, size})
	return nil
}

// reduce interprets calls of OrderedDict() and _rebuild_tensor_v2, the two functions that state dicts use.
func (p *pickleScanner) reduce() error {
	items, err := p.popN(2)
	if err != nil {
		return err
	}
	args, isTuple := items[1].(pickleTuple)
	switch {
	case isTuple && items[0] == globalDict && len(args) == 0:
		p.push(&pickleDict{ordered: true})
		return nil
	case isTuple && items[0] == globalTensor:
		t, err := rebuildTensor(args)
		if err != nil {
			return err
		}
		p.push(t)
		return nil
	}
	return errors.New("call of something other than OrderedDict() or _rebuild_tensor_v2(...)")
}

// rebuildTensor checks the arguments (storage, offset, shape, stride, requires_grad, backward_hooks[, metadata]).
func rebuildTensor(args pickleTuple) (*binTensor, error) {
	if len(args) != 6 {
		return nil, fmt.Errorf("_rebuild_tensor_v2 with %d arguments", len(args))
	}
	storage, okStorage := args[0].(binStorage)
	offset, okOffset := args[1].(int64)
	shape, okShape := integerTuple(args[2])
	stride, okStride := integerTuple(args[3])
	_, okGrad := args[4].(bool)
	hooks, okHooks := args[5].(*pickleDict)
	if !okStorage || !okOffset || !okShape || !okStride || !okGrad || !okHooks || len(hooks.keys) != 0 || len(shape) != len(stride) || len(shape) > maxDims {
		return nil, errors.New("_rebuild_tensor_v2 with arguments of unexpected types")
	}
	n, ok := numel(shape)
	if !ok {
		return nil, fmt.Errorf("shape %v: negative or overflowing size", shape)
	}
	if offset < 0 || n > storage.size || offset > storage.size-n {
		return nil, fmt.Errorf("shape %v at offset %d reaches past the end of its storage of %d", shape, offset, storage.size)
	}
	if n > 0 && !contiguous(shape, stride) {
		return nil, fmt.Errorf("shape %v with strides %v is not contiguous: save the state dict with .contiguous() tensors", shape, stride)
	}
	return &binTensor{storage: storage, offset: offset, shape: shape}, nil
}

func contiguous(shape, stride []int64) bool {
	step := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] != 1 && stride[i] != step {
			return false
		}
		step *= shape[i]
	}
	return true
}

func integerTuple(v any) ([]int64, bool) {
	t, ok := v.(pickleTuple)
	values := make([]int64, len(t))
	for i, item := range t {
		n, isInt := item.(int64)
		values[i], ok = n, ok && isInt
	}
	return values, ok
}

// setItems adds the pairs above the mark (or one pair) to the dict below them.
func (p *pickleScanner) setItems(op byte) error {
	var items []any
	var err error
	if op == 's' {
		items, err = p.popN(2)
	} else {
		items, err = p.popMark()
	}
	if err != nil {
		return err
	}
	if len(p.stack) == 0 {
		return errors.New("no dict to add items to")
	}
	dict, ok := p.stack[len(p.stack)-1].(*pickleDict)
	if !ok || len(items)%2 != 0 {
		return errors.New("items do not go into a dict in pairs")
	}
	if (len(dict.keys)+len(items)/2)*2 > maxPickleDepth {
		return errors.New("dict is too large")
	}
	for i := 0; i < len(items); i += 2 {
		dict.keys, dict.values = append(dict.keys, items[i]), append(dict.values, items[i+1])
	}
	return nil
}

// build accepts {'_metadata': versions by module}, the only attribute of a module's state dict.
func (p *pickleScanner) build() error {
	items, err := p.popN(2)
	if err != nil {
		return err
	}
	dict, isDict := items[0].(*pickleDict)
	state, isState := items[1].(*pickleDict)
	if !isDict || !dict.ordered || !isState || len(state.keys) != 1 || state.keys[0] != "_metadata" {
		return errors.New("an attribute other than _metadata is set")
	}
	p.push(dict)
	return nil
}

// result returns the tensors of the dict that is left on the stack.
func (p *pickleScanner) result() ([]binTensor, error) {
	if len(p.stack) != 1 {
		return nil, fmt.Errorf("pickle: %d values are left at its end, want one dict", len(p.stack))
	}
	dict, ok := p.stack[0].(*pickleDict)
	if !ok {
		return nil, errors.New("pickle: not a dict of tensors")
	}
	if len(dict.keys) > maxTensors {
		return nil, fmt.Errorf("pickle: more than %d tensors", maxTensors)
	}
	tensors := make([]binTensor, 0, len(dict.keys))
	seen := map[string]bool{}
	for i, key := range dict.keys {
		name, isText := key.(string)
		t, isTensor := dict.values[i].(*binTensor)
		switch {
		case !isText:
			return nil, errors.New("pickle: a key of the state dict is not a string")
		case len(name) > strictjson.MaxKeyBytes:
			return nil, fmt.Errorf("pickle: tensor name of %d bytes: at most %d", len(name), strictjson.MaxKeyBytes)
		case !isTensor:
			return nil, fmt.Errorf("pickle: %s is not a tensor", name)
		case seen[name]:
			return nil, fmt.Errorf("pickle: tensor %s occurs twice", name)
		}
		seen[name] = true
		named := *t
		named.name = name
		tensors = append(tensors, named)
	}
	return tensors, nil
}

func (p *pickleScanner) push(v any) { p.stack = append(p.stack, v) }

func (p *pickleScanner) byte() (byte, error) {
	raw, err := p.take(1)
	if err != nil {
		return 0, err
	}
	return raw[0], nil
}

func (p *pickleScanner) take(n int) ([]byte, error) {
	if n > len(p.data)-p.at {
		return nil, errors.New("cut short")
	}
	p.at += n
	return p.data[p.at-n : p.at], nil
}

// number reads an unsigned integer of at most 8 bytes, little endian.
func (p *pickleScanner) number(width int) (uint64, error) {
	raw, err := p.take(width)
	return littleEndian(raw), err
}

// littleEndian returns the unsigned integer in at most 8 bytes.
func littleEndian(raw []byte) uint64 {
	var wide [8]byte
	copy(wide[:], raw)
	return binary.LittleEndian.Uint64(wide[:])
}

// popN pops n values. None of them may be a mark.
func (p *pickleScanner) popN(n int) ([]any, error) {
	if len(p.stack) < n {
		return nil, errors.New("stack is empty")
	}
	from := len(p.stack) - n
	items := slices.Clone(p.stack[from:])
	p.stack = p.stack[:from]
	for _, v := range items {
		if _, isMark := v.(pickleMark); isMark {
			return nil, errors.New("mark where a value belongs")
		}
	}
	return items, nil
}

// popMark pops everything above the last mark, and the mark.
func (p *pickleScanner) popMark() ([]any, error) {
	for i := len(p.stack) - 1; i >= 0; i-- {
		if _, isMark := p.stack[i].(pickleMark); isMark {
			items := slices.Clone(p.stack[i+1:])
			p.stack = p.stack[:i]
			return items, nil
		}
	}
	return nil, errors.New("no mark on the stack")
}
