package jsonl

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// missingFieldError is the error for a name without a value. Its text lists the names that exist.
type missingFieldError string

func (a missingFieldError) Error() string { return string(a) }

// valueOf returns the value of a field of a row. The name is the name of a column, or otherwise
// a path into a column. A path is names of fields and, in lists, positions counted from 0,
// separated by dots, such as reward_model.ground_truth or answers.0.text. A column whose name
// contains dots takes precedence over a path. The error is a missingFieldError if there is no such field.
func valueOf(row object, name string) (json.RawMessage, error) {
	return fieldOf(row, "the row", "", name)
}

// fieldOf returns the value of a field of an object. where is the object's name in errors, and path is the path to its
// fields.
func fieldOf(o object, where, path, name string) (json.RawMessage, error) {
	if raw, ok := o[name]; ok {
		return raw, nil
	}
	for end := strings.LastIndexByte(name, '.'); end >= 0; end = strings.LastIndexByte(name[:end], '.') {
		if raw, ok := o[name[:end]]; ok {
			return pathValue(raw, path+name[:end], name[end+1:])
		}
	}
	return nil, missingFieldError(where + " has " + list(o))
}

// pathValue returns the value at rest within the value at path.
func pathValue(raw json.RawMessage, path, rest string) (json.RawMessage, error) {
	where := fmt.Sprintf("%.80q", path)
	switch raw[0] {
	case 'n':
		return nil, missingFieldError(where + " is null")
	case '{':
		var o object
		if err := json.Unmarshal(raw, &o); err != nil {
			return nil, err
		}
		return fieldOf(o, where, path+".", rest)
	case '[':
		var elements []json.RawMessage
		if err := json.Unmarshal(raw, &elements); err != nil {
			return nil, err
		}
		position, rest, deeper := strings.Cut(rest, ".")
		i, err := strconv.ParseUint(position, 10, 31)
		switch {
		case err != nil || i >= uint64(len(elements)):
			return nil, missingFieldError(fmt.Sprintf("%s has %d elements, counted from 0", where, len(elements)))
		case deeper:
			return pathValue(elements[i], path+"."+position, rest)
		}
		return elements[i], nil
	}
	return nil, fmt.Errorf("%s is neither an object nor a list, so it has no field %q", where, rest)
}

// required returns the value of a field that every row must have. key is the field's key in task.fields.
func required(row object, key, name string) (json.RawMessage, error) {
	raw, err := valueOf(row, name)
	if errors.As(err, new(missingFieldError)) {
		return nil, fmt.Errorf("no field %q: %w; set task.fields.%s to the right name%s", name, err, key, otherLayout(row))
	}
	return raw, withField(name, err)
}

// optional returns the value of an optional field. It returns nil if the row lacks the field or the name is "".
func optional(row object, name string) (json.RawMessage, error) {
	if name == "" {
		return nil, nil
	}
	raw, err := valueOf(row, name)
	if errors.As(err, new(missingFieldError)) {
		return nil, nil
	}
	return raw, withField(name, err)
}

// withField adds the name of a field to an error. It returns nil if err is nil.
func withField(name string, err error) error {
	if err != nil {
		err = fmt.Errorf("field %q: %w", name, err)
	}
	return err
}

// otherLayout returns the end of the error for a row that probably has another layout.
func otherLayout(row object) string {
	switch {
	case row["conversations"] != nil:
		return ", or set task.layout: sharegpt"
	case row["prompt"] != nil && row["reward_model"] != nil:
		return ", or set task.layout: verl"
	}
	return ""
}
