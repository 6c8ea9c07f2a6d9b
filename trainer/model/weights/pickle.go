package weights

import (
	"bytes"
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

// Values on the scanner's stack, apart from strings, integers, booleans, binStorage and *binTensor.
type (
	pickleOther  string // any other value, which is not read: the reason why it cannot be a tensor
	pickleMark   struct{}
	pickleGlobal string
	pickleTuple  []any
	pickleDict   struct { // dict or OrderedDict
		ordered bool
		keys    []any
		values  []any
	}
)

// storageTypes are the types of storages, as safetensors files name them. Other storages have the name of their class as type.
var storageTypes = map[pickleGlobal]DType{
	"torch.FloatStorage": F32, "torch.HalfStorage": F16, "torch.BFloat16Storage": BF16, "torch.DoubleStorage": "F64", "torch.LongStorage": "I64",
	"torch.IntStorage": "I32", "torch.ShortStorage": "I16", "torch.CharStorage": "I8", "torch.ByteStorage": "U8", "torch.BoolStorage": "BOOL",
}

// Globals that a state dict calls. No other global is interpreted.
const (
	globalDict      pickleGlobal = "collections.OrderedDict"
	globalTensor    pickleGlobal = "torch._utils._rebuild_tensor_v2"
	globalParameter pickleGlobal = "torch._utils._rebuild_parameter"
)

const saveTensors = "save plain tensors with torch.save(model.state_dict(), ...)"

// scanPickle reads a pickled state dict (protocol 2, written by torch.save) without executing code. It interprets only what
// builds strings, integers, tuples, dicts and tensors. Each other value is a pickleOther, which is refused in the state dict except
// as extra state. It returns the tensors in the order of the file; those of extra state have only a name.
func scanPickle(data []byte) ([]binTensor, error) {
	p := &pickleScanner{byteReader: byteReader{data: data}, memo: map[uint64]any{}}
	for {
		at := p.at
		op := byte(p.number(1))
		if op == '.' {
			break
		}
		if p.err == nil {
			p.step(op)
		}
		if len(p.stack)+len(p.memo) > maxPickleDepth {
			p.fail("stack and memo have more than %d entries", maxPickleDepth)
		}
		if p.err != nil {
			return nil, fmt.Errorf("pickle byte %d: %w", at, p.err)
		}
	}
	if p.at != len(p.data) {
		return nil, errors.New("pickle: data after its end")
	}
	return p.result()
}

type pickleScanner struct {
	byteReader
	stack []any
	memo  map[uint64]any
}

// step interprets one opcode. The names are from Python's pickletools.
func (p *pickleScanner) step(op byte) {
	switch op {
	case 0x80: // PROTO
		if version := p.number(1); version != 2 {
			p.fail("protocol %d: only 2 is supported", version)
		}
	case '(': // MARK
		p.push(pickleMark{})
	case '}': // EMPTY_DICT
		p.push(&pickleDict{})
	case ')': // EMPTY_TUPLE
		p.push(pickleTuple{})
	case 0x88, 0x89: // NEWTRUE, NEWFALSE
		p.push(op == 0x88)
	case 'X': // BINUNICODE
		p.text()
	case 'K': // BININT1
		p.integer(1, false)
	case 'M': // BININT2
		p.integer(2, false)
	case 'J': // BININT
		p.integer(4, true)
	case 0x8a: // LONG1
		p.integer(int(p.number(1)), true)
	case 'c': // GLOBAL
		p.global()
	case 'q': // BINPUT
		p.store(1)
	case 'r': // LONG_BINPUT
		p.store(4)
	case 'h': // BINGET
		p.fetch(1)
	case 'j': // LONG_BINGET
		p.fetch(4)
	case 't': // TUPLE
		p.tuple(p.popMark())
	case 0x85, 0x86, 0x87: // TUPLE1, TUPLE2, TUPLE3
		p.tuple(p.popN(int(op-0x85) + 1))
	case 'Q': // BINPERSID
		p.persistent()
	case 'R': // REDUCE
		p.reduce()
	case 's': // SETITEM
		p.setItems(p.popN(2))
	case 'u': // SETITEMS
		p.setItems(p.popMark())
	case 'b': // BUILD
		p.build()
	default:
		p.stepOther(op)
	}
}

// stepOther interprets an opcode of values that are not read.
func (p *pickleScanner) stepOther(op byte) {
	switch op {
	case 'N': // NONE
		p.push(pickleOther("None"))
	case 'G': // BINFLOAT
		p.take(8)
		p.push(pickleOther("a number"))
	case ']': // EMPTY_LIST
		p.push(pickleOther("a list"))
	case 'a', 'e': // APPEND, APPENDS
		if op == 'a' {
			p.popN(1)
		} else {
			p.popMark()
		}
		if _, ok := p.top().(pickleOther); !ok {
			p.fail("items do not go into a list")
		}
	case 0x81: // NEWOBJ
		p.push(calling(p.popN(2)[0]))
	default:
		p.fail("opcode %#x is not used in a state dict of tensors: %s", op, saveTensors)
	}
}

// calling returns the value for the result of a call that is not interpreted.
func calling(what any) pickleOther {
	if name, ok := what.(pickleGlobal); ok {
		return pickleOther(fmt.Sprintf("a result of %q", string(name)))
	}
	return "a result of a call"
}

// text pushes a string.
func (p *pickleScanner) text() {
	text := p.take(p.number(4))
	if !utf8.Valid(text) {
		p.fail("string is not UTF-8")
	}
	p.push(string(text))
}

// integer pushes an integer of the given number of bytes.
func (p *pickleScanner) integer(width int, signed bool) {
	if width > 8 {
		p.take(uint64(width))
		p.push(pickleOther(fmt.Sprintf("an integer of %d bytes", width)))
		return
	}
	v := p.number(width)
	if above := 64 - 8*width; signed { // bits that take the sign
		v = uint64(int64(v<<above) >> above)
	}
	p.push(int64(v))
}

func (p *pickleScanner) global() {
	var parts [2]string
	for i := range parts {
		line, _, ended := bytes.Cut(p.data[p.at:], []byte("\n"))
		if !ended {
			p.fail("cut short")
			return
		}
		parts[i] = string(line[:min(len(line), 200)])
		p.at += len(line) + 1
	}
	p.push(pickleGlobal(parts[0] + "." + parts[1]))
}

// store stores the last value under a key of the given number of bytes.
func (p *pickleScanner) store(width int) {
	if len(p.stack) == 0 {
		p.fail("nothing to store in the memo")
	}
	p.memo[p.number(width)] = p.top()
}

// fetch pushes the value that store stored under a key.
func (p *pickleScanner) fetch(width int) {
	key := p.number(width)
	v, ok := p.memo[key]
	if !ok {
		p.fail("memo entry %d was never stored", key)
	}
	p.push(v)
}

// tuple pushes a tuple.
func (p *pickleScanner) tuple(items []any) {
	if len(items) > 16 {
		p.push(pickleOther("a long tuple"))
		return
	}
	p.push(pickleTuple(items))
}

// persistent converts ('storage', class, key, location, size) to a storage.
func (p *pickleScanner) persistent() {
	id, _ := p.popN(1)[0].(pickleTuple)
	if len(id) != 5 || id[0] != "storage" {
		p.fail("persistent id is not a storage")
		return
	}
	class, okClass := id[1].(pickleGlobal)
	key, okKey := id[2].(string)
	_, okLocation := id[3].(string)
	size, okSize := id[4].(int64)
	dtype, known := storageTypes[class]
	if !known {
		dtype = DType(class)
	}
	if len(key) > strictjson.MaxKeyBytes {
		p.fail("storage key of %d bytes", len(key))
	}
	if !okClass || !okKey || !okLocation || !okSize || size < 0 || size > math.MaxInt64/8 {
		p.fail("persistent id is not a storage")
	}
	p.push(binStorage{key, dtype, size})
}

// reduce interprets calls of OrderedDict(), _rebuild_tensor_v2 and _rebuild_parameter, the functions that state dicts use.
func (p *pickleScanner) reduce() {
	items := p.popN(2)
	args, isTuple := items[1].(pickleTuple)
	switch {
	case isTuple && items[0] == globalDict && len(args) == 0:
		p.push(&pickleDict{ordered: true})
	case isTuple && items[0] == globalTensor:
		if t, err := rebuildTensor(args); err != nil {
			p.push(pickleOther(err.Error()))
		} else {
			p.push(t)
		}
	case isTuple && items[0] == globalParameter && len(args) == 3: // tensor, requires_grad, backward_hooks
		p.push(args[0])
	default:
		p.push(calling(items[0]))
	}
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

// setItems adds pairs to the dict on top of the stack.
func (p *pickleScanner) setItems(items []any) {
	if _, other := p.top().(pickleOther); other {
		return
	}
	dict, ok := p.top().(*pickleDict)
	if !ok || len(items)%2 != 0 {
		p.fail("items do not go into a dict in pairs")
		return
	}
	if (len(dict.keys)+len(items)/2)*2 > maxPickleDepth {
		p.fail("dict is too large")
	}
	for i := 0; i < len(items); i += 2 {
		dict.keys, dict.values = append(dict.keys, items[i]), append(dict.values, items[i+1])
	}
}

// build accepts {'_metadata': versions by module}, the only attribute of a module's state dict. Values with other attributes are not read.
func (p *pickleScanner) build() {
	items := p.popN(2)
	dict, isDict := items[0].(*pickleDict)
	state, isState := items[1].(*pickleDict)
	if !isDict || !dict.ordered || !isState || len(state.keys) != 1 || state.keys[0] != "_metadata" {
		p.push(pickleOther("a value with attributes"))
		return
	}
	p.push(dict)
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
		other, isOther := dict.values[i].(pickleOther)
		if isText && isExtraState(name) {
			t, isTensor, isOther = &binTensor{}, true, false
		}
		switch {
		case !isText:
			return nil, errors.New("pickle: a key of the state dict is not a string")
		case len(name) > strictjson.MaxKeyBytes:
			return nil, fmt.Errorf("pickle: tensor name of %d bytes: at most %d", len(name), strictjson.MaxKeyBytes)
		case isOther:
			return nil, fmt.Errorf("pickle: %s cannot be read as a tensor: %s: %s", name, other, saveTensors)
		case !isTensor:
			return nil, fmt.Errorf("pickle: %s is not a tensor: %s", name, saveTensors)
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

// top returns the last value, or nil if there is none.
func (p *pickleScanner) top() any {
	if len(p.stack) == 0 {
		return nil
	}
	return p.stack[len(p.stack)-1]
}

// popN pops n values. None of them may be a mark. After an error it returns n nils.
func (p *pickleScanner) popN(n int) []any {
	items := make([]any, n)
	from := len(p.stack) - n
	if from < 0 {
		p.fail("stack is empty")
		return items
	}
	copy(items, p.stack[from:])
	p.stack = p.stack[:from]
	if slices.Contains(items, any(pickleMark{})) {
		p.fail("mark where a value belongs")
	}
	return items
}

// popMark pops everything above the last mark, and the mark.
func (p *pickleScanner) popMark() []any {
	for i := len(p.stack) - 1; i >= 0; i-- {
		if _, isMark := p.stack[i].(pickleMark); isMark {
			items := slices.Clone(p.stack[i+1:])
			p.stack = p.stack[:i]
			return items
		}
	}
	p.fail("no mark on the stack")
	return nil
}
