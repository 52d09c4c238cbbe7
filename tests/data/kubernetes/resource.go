// Kubernetes' own Go types of resource.k8s.io/v1: definitions of custom resources made of them, and a strict decoder.
//
// "definitions" prints CustomResourceDefinitions by reflection over the types. "decode" reads JSON objects, one a line, and
// prints for each the error that a server with strict field validation gives, or an empty line. No schema is written here.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"

	v1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	strict "sigs.k8s.io/json"
)

type object map[string]any

var kinds = []struct {
	kind, plural, scope string
	make                func() any
}{
	{"ResourceSlice", "resourceslices", "Cluster", func() any { return &v1.ResourceSlice{} }},
	{"ResourceClaim", "resourceclaims", "Namespaced", func() any { return &v1.ResourceClaim{} }},
	{"ResourceClaimTemplate", "resourceclaimtemplates", "Namespaced", func() any { return &v1.ResourceClaimTemplate{} }},
	{"DeviceClass", "deviceclasses", "Cluster", func() any { return &v1.DeviceClass{} }},
}

func schema(of reflect.Type) object {
	switch of {
	case reflect.TypeOf(resource.Quantity{}):
		return object{"x-kubernetes-int-or-string": true}
	case reflect.TypeOf(metav1.Time{}):
		return object{"type": "string", "format": "date-time"}
	case reflect.TypeOf(runtime.RawExtension{}), reflect.TypeOf(metav1.ObjectMeta{}):
		return object{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	}
	switch of.Kind() {
	case reflect.Pointer:
		return schema(of.Elem())
	case reflect.Slice:
		return object{"type": "array", "items": schema(of.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": schema(of.Elem())}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int32, reflect.Int64:
		return object{"type": "integer", "format": "int64"}
	case reflect.Struct:
		return structure(of)
	}
	panic(of.String())
}

func structure(of reflect.Type) object {
	properties, required := object{}, []string{}
	for number := 0; number < of.NumField(); number++ {
		field := of.Field(number)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" { // the fields of an embedded structure are the outer one's
			inner := schema(field.Type)
			for key, value := range inner["properties"].(object) {
				properties[key] = value
			}
			continue
		}
		properties[name] = schema(field.Type)
		if !strings.Contains(options, "omit") {
			required = append(required, name)
		}
	}
	found := object{"type": "object", "properties": properties}
	if len(required) > 0 {
		found["required"] = required
	}
	return found
}

func definition(kind, plural, scope string, of reflect.Type) object {
	root := object{"type": "object", "properties": object{}}
	version := object{"name": "v1", "served": true, "storage": true, "schema": object{"openAPIV3Schema": root}}
	for number := 0; number < of.NumField(); number++ {
		name, _, _ := strings.Cut(of.Field(number).Tag.Get("json"), ",")
		if name == "spec" || name == "status" {
			root["properties"].(object)[name] = schema(of.Field(number).Type)
		}
		if name == "status" {
			version["subresources"] = object{"status": object{}}
		}
	}
	names := object{"kind": kind, "plural": plural, "singular": strings.ToLower(kind), "listKind": kind + "List"}
	metadata := object{
		"name":        plural + "." + v1.GroupName,
		"annotations": object{"api-approved.kubernetes.io": "unapproved, a stand-in for the built-in kind"},
	}
	return object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata,
		"spec": object{"group": v1.GroupName, "scope": scope, "names": names, "versions": []object{version}},
	}
}

func decoded(line []byte) error {
	var kind metav1.TypeMeta
	if err := json.Unmarshal(line, &kind); err != nil {
		return err
	}
	for _, one := range kinds {
		if kind.Kind == one.kind && kind.APIVersion == v1.SchemeGroupVersion.String() {
			errors, err := strict.UnmarshalStrict(line, one.make())
			if len(errors) > 0 {
				return fmt.Errorf("%v", errors)
			}
			return err
		}
	}
	return fmt.Errorf("no kind %s of %s", kind.Kind, kind.APIVersion)
}

func main() {
	if os.Args[1] == "definitions" {
		found := []object{}
		for _, one := range kinds {
			found = append(found, definition(one.kind, one.plural, one.scope, reflect.TypeOf(one.make()).Elem()))
		}
		if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
			panic(err)
		}
		return
	}
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		if err := decoded(line); err != nil {
			fmt.Println(strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Println()
		}
	}
}
