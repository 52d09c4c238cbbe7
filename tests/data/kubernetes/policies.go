// Evaluates ValidatingAdmissionPolicies by the API server's own code: {"policies": {NAME: spec}, "cases": [{"policy",
// "object", "operation", "username", "extra"}]} on stdin, for each case the message of its refusal on stdout, "" where it is
// admitted. An object is a Pod, a Node or a ResourceSlice; the operation CREATE if it is left out. An expression that cannot be compiled or evaluated ends the program.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"cel.dev/cel-go/cel"
	admissionv1 "k8s.io/api/admission/v1"
	policyv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	policycel "k8s.io/apiserver/pkg/admission/plugin/cel"
	apiservercel "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

type expression struct {
	name, text string
	kind       *cel.Type
}

func (e expression) GetExpression() string    { return e.text }
func (e expression) ReturnTypes() []*cel.Type { return []*cel.Type{e.kind} }
func (e expression) GetName() string          { return e.name }

type policy struct{ conditions, validations, messages policycel.ConditionEvaluator }

type request struct {
	Policy    string
	Object    json.RawMessage
	Operation admissionv1.Operation
	Username  string
	Extra     map[string]authenticationv1.ExtraValue
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func compiled(spec policyv1.ValidatingAdmissionPolicySpec, messages []string) policy {
	compiler, err := policycel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	must(err)
	declared := policycel.OptionalVariableDeclarations{}
	for _, one := range spec.Variables {
		result := compiler.CompileAndStoreVariable(expression{one.Name, one.Expression, cel.AnyType}, declared, environment.NewExpressions)
		if result.Error != nil {
			must(fmt.Errorf("variable %s: %s", one.Name, result.Error.Detail))
		}
	}
	var conditions, validations, texts []policycel.ExpressionAccessor
	for _, one := range spec.MatchConditions {
		conditions = append(conditions, expression{one.Name, one.Expression, cel.BoolType})
	}
	for at, one := range spec.Validations {
		validations = append(validations, expression{"", one.Expression, cel.BoolType})
		texts = append(texts, expression{"", messages[at], cel.StringType})
	}
	made := func(of []policycel.ExpressionAccessor) policycel.ConditionEvaluator {
		evaluator := compiler.CompileCondition(of, declared, environment.NewExpressions)
		for _, err := range evaluator.CompilationErrors() {
			must(err)
		}
		return evaluator
	}
	return policy{made(conditions), made(validations), made(texts)}
}

func answer(of policy, one request) string {
	kind, object := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, runtime.Object(&corev1.Pod{})
	resource := metav1.GroupVersionResource{Version: "v1", Resource: "pods"}
	var head metav1.TypeMeta
	must(json.Unmarshal(one.Object, &head))
	if head.Kind == "Node" {
		kind.Kind, resource.Resource, object = "Node", "nodes", &corev1.Node{}
	} else if head.Kind == "ResourceSlice" {
		kind = resourcev1.SchemeGroupVersion.WithKind(head.Kind)
		resource = metav1.GroupVersionResource(resourcev1.SchemeGroupVersion.WithResource("resourceslices"))
		object = &resourcev1.ResourceSlice{}
	}
	must(json.Unmarshal(one.Object, object))
	attributes := &admission.VersionedAttributes{VersionedKind: kind, VersionedObject: object}
	if one.Operation == "" {
		one.Operation = admissionv1.Create
	} else if one.Operation == admissionv1.Delete { // the server has no object then
		attributes.VersionedObject, attributes.VersionedOldObject = nil, object
	}
	asked := &admissionv1.AdmissionRequest{
		Operation: one.Operation, Resource: resource,
		UserInfo: authenticationv1.UserInfo{Username: one.Username, Extra: one.Extra},
	}
	evaluated := func(evaluator policycel.ConditionEvaluator) []policycel.EvaluationResult {
		results, _, err := evaluator.ForInput(context.Background(), attributes, asked, policycel.OptionalVariableBindings{},
			nil, apiservercel.RuntimeCELCostBudget)
		must(err)
		for _, result := range results {
			must(result.Error)
		}
		return results
	}
	for _, result := range evaluated(of.conditions) {
		if result.EvalResult.Value() != true {
			return ""
		}
	}
	for at, result := range evaluated(of.validations) {
		if result.EvalResult.Value() != true {
			return fmt.Sprint(evaluated(of.messages)[at].EvalResult.Value())
		}
	}
	return ""
}

func main() {
	var input struct {
		Policies map[string]policyv1.ValidatingAdmissionPolicySpec
		Cases    []request
	}
	must(json.NewDecoder(os.Stdin).Decode(&input))
	policies := map[string]policy{}
	for name, spec := range input.Policies {
		messages := []string{}
		for _, one := range spec.Validations {
			text := one.MessageExpression
			if text == "" {
				quoted, err := json.Marshal(one.Message)
				must(err)
				text = string(quoted)
			}
			messages = append(messages, text)
		}
		policies[name] = compiled(spec, messages)
	}
	answers := []string{}
	for _, one := range input.Cases {
		answers = append(answers, answer(policies[one.Policy], one))
	}
	must(json.NewEncoder(os.Stdout).Encode(answers))
}
