// oracle answers questions about selectors and claims with the code that the Kubernetes scheduler
// runs. It reads a JSON list of questions from standard input and writes the list of answers.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// consumption is what claims consume together of a device of which they have shares.
type consumption map[resourceapi.QualifiedName]resource.Quantity

// question is either about an expression on a device of a driver, or about claims on a node.
type question struct {
	Expression string                       `json:"expression"`
	Driver     string                       `json:"driver"`
	Device     resourceapi.Device           `json:"device"`
	Node       string                       `json:"node"`
	Slices     []*resourceapi.ResourceSlice `json:"slices"`
	Classes    []*resourceapi.DeviceClass   `json:"classes"`
	Claims     []*resourceapi.ResourceClaim `json:"claims"`
	Taken      [][3]string                  `json:"taken"`
	Shared     map[string]consumption       `json:"shared"`
}

// answer has one of matches, error and allocations; none of them: the claims do not fit the node.
type answer struct {
	Matches     *bool                          `json:"matches,omitempty"`
	Stage       string                         `json:"stage,omitempty"`
	Error       string                         `json:"error,omitempty"`
	Allocations []resourceapi.AllocationResult `json:"allocations,omitempty"`
}

type classLister map[string]*resourceapi.DeviceClass

func (c classLister) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, ok := c[name]; ok {
		return class, nil
	}
	return nil, fmt.Errorf("deviceclass %q not found", name)
}

func (c classLister) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

var celFeatures = cel.Features{EnableConsumableCapacity: true}

func evaluate(ctx context.Context, q question) answer {
	compiled := cel.GetCompiler(celFeatures).CompileCELExpression(q.Expression, cel.Options{})
	if compiled.Error != nil {
		return answer{Stage: "compile", Error: compiled.Error.Detail}
	}
	matches, _, err := compiled.DeviceMatches(ctx, cel.Device{
		Driver:                   q.Driver,
		AllowMultipleAllocations: q.Device.AllowMultipleAllocations,
		Attributes:               q.Device.Attributes,
		Capacity:                 q.Device.Capacity,
	})
	if err != nil {
		return answer{Stage: "run", Error: err.Error()}
	}
	return answer{Matches: &matches}
}

func allocate(ctx context.Context, q question) answer {
	classes := classLister{}
	for _, class := range q.Classes {
		classes[class.Name] = class
	}
	taken := sets.New[structured.DeviceID]()
	for _, t := range q.Taken {
		taken.Insert(structured.MakeDeviceID(t[0], t[1], t[2]))
	}
	features := structured.Features{
		AdminAccess: true, PrioritizedList: true, DeviceTaints: true,
		PartitionableDevices: true, ConsumableCapacity: true, FractionalCapacityRange: true,
	}
	state := structured.AllocatedState{
		AllocatedDevices:         taken,
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for name, consumed := range q.Shared {
		device, share := structured.MakeDeviceID("gpu.nvidia.com", q.Node, name), types.UID("a-share")
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(device, &share))
		if len(consumed) > 0 { // as the scheduler does with an allocation that consumes nothing
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, consumed))
		}
	}
	allocator, err := structured.NewAllocator(ctx, features, state, classes, q.Slices, cel.NewCache(100, celFeatures))
	if err != nil {
		return answer{Stage: "allocate", Error: err.Error()}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: q.Node}}
	results, err := allocator.Allocate(ctx, node, q.Claims)
	if err != nil {
		return answer{Stage: "allocate", Error: err.Error()}
	}
	return answer{Allocations: results}
}

func main() {
	var questions []question
	decoder := json.NewDecoder(os.Stdin)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&questions); err != nil {
		fmt.Fprintln(os.Stderr, "questions:", err)
		os.Exit(1)
	}
	ctx := context.Background()
	answers := make([]answer, 0, len(questions))
	for _, q := range questions {
		if q.Expression != "" {
			answers = append(answers, evaluate(ctx, q))
		} else {
			answers = append(answers, allocate(ctx, q))
		}
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(answers); err != nil {
		fmt.Fprintln(os.Stderr, "answers:", err)
		os.Exit(1)
	}
}
